import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.redisson.Redisson;

/**
 * Uses Redisson on a word of the tests: commands on standard input, answers on standard output, a line each.
 *
 * <pre>
 * java -jar redisson-peer.jar [SETTING=VALUE ...] HOST:PORT [HOST:PORT ...]
 *
 * settings: lockWatchdogTimeout, fairLockWaitTimeout, timeout, retryAttempts (milliseconds and a number; Redisson's
 * own defaults without them); nameMapper, a text that is put before every name, also before that of a counter;
 * cluster, whatever its value: the addresses are nodes of one cluster, and there is one client
 *
 * It says `ready VERSION` once. Then each command has one answer, when it has been done:
 *
 *   ID THREAD KIND NAME OPERATION [ARGUMENT=VALUE ...]
 *
 *   ID ok VALUE          a void method answers nothing after `ok`, null is `null`, a list has commas
 *   ID error TYPE TEXT   the simple name of the exception and what it says, then its cause as `, by TYPE TEXT`
 *
 * ID       any word; the answer begins with it
 * THREAD   any word; a Java thread of that name, which does its commands one after the other
 * KIND     lock fair spin nonreentrant nonreentrantfair fenced read write multi red semaphore permits latch peer
 * NAME     NAME[@SERVER], where SERVER counts the addresses from 0, and is 0 without it; multi and red take several
 *          with commas; peer takes -
 * times    in milliseconds
 *
 * Locks: every kind up to red
 *   lock [lease=]   lockInterruptibly [lease=]   tryLock [wait= [lease=]]   unlock   forceUnlock   isLocked
 *   isHeldByCurrentThread   isHeldByThread id=   getHoldCount   remainTimeToLive   newCondition   getName
 *   count counter= times= [inside=] [wait= lease= | lease=]
 *       so often: takes the lock, GET and SET of a plain key on server 0, one more each time, releases the lock.
 *       With inside= also INCR of that key before and DECR after, which must answer 1 and 0.
 *       With lease= by lock(lease), with wait= as well by tryLock(wait, lease) until it is true, else by lock().
 * fenced, besides
 *   getToken   lockAndGetToken [lease=]   tryLockAndGetToken [wait= [lease=]]
 * semaphore
 *   acquire [permits=]   tryAcquire [permits=] [wait=]   release [permits=]   releaseIfExists permits=
 *   availablePermits   drainPermits   trySetPermits permits= [ttl=]   addPermits permits=   delete   remainTimeToLive
 *   count counter= times=   under one permit
 * permits (with permits= the form for several, which answers a list)
 *   acquire [permits=] [lease=]   tryAcquire [permits=] [wait= [lease=]]   tryRelease id=   release id=
 *   tryReleaseAll ids=   releaseAll ids=   availablePermits   acquiredPermits   getPermits   trySetPermits permits=
 *   setPermits permits=   addPermits permits=   updateLeaseTime id= lease=   getLeaseTime id=   delete
 *   remainTimeToLive   count counter= times=   under one permit
 * latch
 *   trySetCount count=   countDown   getCount   await [wait=]   delete
 * peer
 *   owner       what THREAD is called on server 0: the client's id, a colon, the thread's id
 *   interrupt   interrupts THREAD; is done at once, whatever THREAD does
 *   sleeps      whether THREAD sleeps until a message wakes it; is done at once, whatever THREAD does
 * </pre>
 *
 * A Redisson object is made anew for each command, so that none remembers what an earlier one was told. At the end of
 * the input it shuts Redisson down and ends. What threads still wait for is given up.
 */
public final class RedissonPeer {
    private final Servers servers;
    private final Map<String, Worker> workers = new HashMap<>();
    private final PrintStream output = System.out;

    private RedissonPeer(Servers servers) {
        this.servers = servers;
    }

    public static void main(String[] arguments) throws IOException {
        Map<String, String> settings = new HashMap<>();
        List<String> addresses = new ArrayList<>();
        for (String argument : arguments) {
            int equals = argument.indexOf('=');
            if (equals < 0) {
                addresses.add(argument);
            } else {
                settings.put(argument.substring(0, equals), argument.substring(equals + 1));
            }
        }
        RedissonPeer peer = new RedissonPeer(new Servers(settings, addresses));
        peer.say("ready " + Redisson.class.getPackage().getImplementationVersion());
        peer.run();
        peer.servers.shutdown();
        // The threads may wait for what never comes.
        System.exit(0);
    }

    private void run() throws IOException {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Command command = Command.parse(line);
            Worker worker = workers.computeIfAbsent(command.thread(), Worker::new);
            if (command.kind().equals("peer") && command.operation().equals("interrupt")) {
                worker.interrupt();
                say(command.id() + " ok");
            } else if (command.kind().equals("peer") && command.operation().equals("sleeps")) {
                say(command.id() + " ok " + worker.sleeps());
            } else {
                worker.executor.execute(() -> say(answer(command)));
            }
        }
    }

    private String answer(Command command) {
        try {
            Object value = perform(command);
            return command.id() + " ok" + (value == Command.NOTHING ? "" : " " + shown(value));
        } catch (Throwable thrown) {
            return command.id() + " error " + shown(thrown);
        }
    }

    private Object perform(Command command) throws InterruptedException {
        switch (command.kind()) {
            case "semaphore":
                return Semaphores.perform(servers, command);
            case "permits":
                return Permits.perform(servers, command);
            case "latch":
                return Latches.perform(servers, command);
            case "peer":
                return owner(command);
            default:
                return Locks.perform(servers, command);
        }
    }

    private Object owner(Command command) {
        if (!command.operation().equals("owner")) {
            throw command.unknown();
        }
        return servers.first().getId() + ":" + Thread.currentThread().getId();
    }

    private static String shown(Object value) {
        if (!(value instanceof List<?> list)) {
            return String.valueOf(value);
        }
        return String.join(",", list.stream().map(String::valueOf).toList());
    }

    private static String shown(Throwable thrown) {
        String text = thrown.getClass().getSimpleName() + " " + String.valueOf(thrown.getMessage());
        Throwable cause = thrown.getCause();
        return text.replaceAll("\\s+", " ") + (cause == null ? "" : ", by " + shown(cause));
    }

    /** Says one line, whole and at once, whichever threads speak. */
    private synchronized void say(String line) {
        output.print(line + "\n");
        output.flush();
    }

    /** One thread for ever, since Redisson's owners are threads. */
    private static final class Worker {
        private volatile Thread thread;
        private final ExecutorService executor;

        Worker(String name) {
            executor = Executors.newSingleThreadExecutor(task -> {
                thread = new Thread(task, name);
                thread.setDaemon(true);
                return thread;
            });
        }

        /** A Redisson waiter sleeps on a semaphore. A thread whose request is under way waits for a future. */
        boolean sleeps() {
            Thread waiter = thread;
            if (waiter == null) {
                return false;
            }
            Thread.State state = waiter.getState();
            return (state == Thread.State.WAITING || state == Thread.State.TIMED_WAITING)
                && Arrays.stream(waiter.getStackTrace())
                    .anyMatch(frame -> frame.getClassName().equals("java.util.concurrent.Semaphore"));
        }

        void interrupt() {
            Thread interrupted = thread;
            if (interrupted != null) {
                interrupted.interrupt();
            }
        }
    }
}
