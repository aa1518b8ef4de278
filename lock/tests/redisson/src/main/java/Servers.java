import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.redisson.Redisson;
import org.redisson.api.RAtomicLong;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.NameMapper;
import org.redisson.config.SingleServerConfig;

/** One Redisson client for each server, or one for all if they are a cluster; and the objects that commands name. */
final class Servers {
    private final List<RedissonClient> clients = new ArrayList<>();

    Servers(Map<String, String> settings, List<String> addresses) {
        if (settings.containsKey("cluster")) {
            clients.add(Redisson.create(cluster(settings, addresses)));
            return;
        }
        for (String address : addresses) {
            clients.add(Redisson.create(config(settings, address)));
        }
    }

    private static Config cluster(Map<String, String> settings, List<String> addresses) {
        Config config = new Config();
        ClusterServersConfig servers = config.useClusterServers();
        addresses.forEach(address -> servers.addNodeAddress("redis://" + address));
        servers.setMasterConnectionMinimumIdleSize(1);
        servers.setScanInterval(500);
        settings.forEach((name, value) -> {
            switch (name) {
                case "cluster" -> { }
                case "lockWatchdogTimeout" -> config.setLockWatchdogTimeout(Long.parseLong(value));
                default -> throw new IllegalArgumentException("there is no setting " + name + " of a cluster");
            }
        });
        return config;
    }

    private static Config config(Map<String, String> settings, String address) {
        Config config = new Config();
        SingleServerConfig server = config.useSingleServer().setAddress("redis://" + address);
        // Connections are opened as they are needed: two dozen at the start are time that every test waits for.
        server.setConnectionMinimumIdleSize(1);
        settings.forEach((name, value) -> {
            switch (name) {
                case "lockWatchdogTimeout" -> config.setLockWatchdogTimeout(Long.parseLong(value));
                case "fairLockWaitTimeout" -> config.setFairLockWaitTimeout(Long.parseLong(value));
                case "timeout" -> server.setTimeout(Integer.parseInt(value));
                case "retryAttempts" -> server.setRetryAttempts(Integer.parseInt(value));
                case "nameMapper" -> config.setNameMapper(behind(value));
                default -> throw new IllegalArgumentException("there is no setting " + name);
            }
        });
        return config;
    }

    /** Puts a prefix before every name. */
    private static NameMapper behind(String prefix) {
        return new NameMapper() {
            @Override
            public String map(String name) {
                return prefix + name;
            }

            @Override
            public String unmap(String name) {
                return name.startsWith(prefix) ? name.substring(prefix.length()) : name;
            }
        };
    }

    RedissonClient first() {
        return clients.get(0);
    }

    /** The client of the server that a name says. */
    RedissonClient of(String name) {
        int at = name.lastIndexOf('@');
        return at < 0 ? first() : clients.get(Integer.parseInt(name.substring(at + 1)));
    }

    /** A name without its server. */
    static String plain(String name) {
        int at = name.lastIndexOf('@');
        return at < 0 ? name : name.substring(0, at);
    }

    /** The lock that a command names. */
    RLock lock(Command command) {
        if (command.kind().equals("multi")) {
            return first().getMultiLock(parts(command));
        }
        if (command.kind().equals("red")) {
            return first().getRedLock(parts(command));
        }
        RedissonClient client = of(command.name());
        String name = plain(command.name());
        return switch (command.kind()) {
            case "lock" -> client.getLock(name);
            case "fair" -> client.getFairLock(name);
            case "spin" -> client.getSpinLock(name);
            case "nonreentrant" -> client.getNonReentrantLock(name);
            case "nonreentrantfair" -> client.getNonReentrantFairLock(name);
            case "fenced" -> client.getFencedLock(name);
            case "read" -> client.getReadWriteLock(name).readLock();
            case "write" -> client.getReadWriteLock(name).writeLock();
            default -> throw new IllegalArgumentException("there is no kind " + command.kind());
        };
    }

    private RLock[] parts(Command command) {
        return command.names().stream().map(name -> of(name).getLock(plain(name))).toArray(RLock[]::new);
    }

    /** Runs the steps of a count, each between what `enter` and `leave` do. */
    Object count(Command command, Enter enter) throws InterruptedException {
        RBucket<String> counter = first().getBucket(command.text("counter"), StringCodec.INSTANCE);
        int times = command.count("times");
        for (int done = 0; done < times; done++) {
            Runnable leave = enter.enter();
            try {
                mark(command, 1);
                String value = counter.get();
                counter.set(String.valueOf(value == null ? 1 : Long.parseLong(value) + 1));
                mark(command, 0);
            } finally {
                leave.run();
            }
        }
        return times;
    }

    /** Counts those that are inside, on the way in to 1 and on the way out to 0. */
    private void mark(Command command, long expected) {
        if (!command.has("inside")) {
            return;
        }
        RAtomicLong inside = first().getAtomicLong(command.text("inside"));
        long count = expected == 1 ? inside.incrementAndGet() : inside.decrementAndGet();
        if (count != expected) {
            throw new IllegalStateException("not alone inside: " + count);
        }
    }

    void shutdown() {
        clients.forEach(RedissonClient::shutdown);
    }

    /** Takes what guards a step, and answers what gives it back. */
    interface Enter {
        Runnable enter() throws InterruptedException;
    }
}
