-- Tells a client that another one wants a lock which it may have cached.
--
-- KEYS[1]  the channel of that client, and the key of its record
-- ARGV[1]  the command that publishes
-- ARGV[2]  the name of the lock
--
-- Answers how many subscribers the message has reached on this server.
--
-- Writes nothing. It names a key so that in a cluster the node of the channel's slot is asked.
return redis.call(ARGV[1], KEYS[1], ARGV[2])
