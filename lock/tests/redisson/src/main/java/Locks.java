import static java.util.concurrent.TimeUnit.MILLISECONDS;

import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;

/** What locks of all kinds can be told. */
final class Locks {
    private Locks() {
    }

    static Object perform(Servers servers, Command command) throws InterruptedException {
        RLock lock = servers.lock(command);
        switch (command.operation()) {
            case "lock" -> lock(lock, command);
            case "lockInterruptibly" -> {
                if (command.has("lease")) {
                    lock.lockInterruptibly(command.number("lease"), MILLISECONDS);
                } else {
                    lock.lockInterruptibly();
                }
            }
            case "unlock" -> lock.unlock();
            default -> {
                return answer(servers, lock, command);
            }
        }
        return Command.NOTHING;
    }

    private static Object answer(Servers servers, RLock lock, Command command) throws InterruptedException {
        return switch (command.operation()) {
            case "tryLock" -> tryLock(lock, command);
            case "forceUnlock" -> lock.forceUnlock();
            case "isLocked" -> lock.isLocked();
            case "isHeldByCurrentThread" -> lock.isHeldByCurrentThread();
            case "isHeldByThread" -> lock.isHeldByThread(command.number("id"));
            case "getHoldCount" -> lock.getHoldCount();
            case "remainTimeToLive" -> lock.remainTimeToLive();
            case "newCondition" -> lock.newCondition();
            case "getName" -> lock.getName();
            case "count" -> servers.count(command, () -> {
                enter(lock, command);
                return lock::unlock;
            });
            case "getToken", "lockAndGetToken", "tryLockAndGetToken" -> fenced(lock, command);
            default -> throw command.unknown();
        };
    }

    private static void enter(RLock lock, Command command) throws InterruptedException {
        if (!command.has("wait")) {
            lock(lock, command);
            return;
        }
        while (!tryLock(lock, command)) {
            // Its time was up. Once more.
        }
    }

    private static void lock(RLock lock, Command command) {
        if (command.has("lease")) {
            lock.lock(command.number("lease"), MILLISECONDS);
        } else {
            lock.lock();
        }
    }

    private static boolean tryLock(RLock lock, Command command) throws InterruptedException {
        if (command.has("lease")) {
            return lock.tryLock(command.number("wait"), command.number("lease"), MILLISECONDS);
        }
        return command.has("wait") ? lock.tryLock(command.number("wait"), MILLISECONDS) : lock.tryLock();
    }

    private static Long fenced(RLock lock, Command command) {
        if (!(lock instanceof RFencedLock fenced)) {
            throw command.unknown();
        }
        if (command.operation().equals("getToken")) {
            return fenced.getToken();
        }
        if (command.operation().equals("lockAndGetToken")) {
            return command.has("lease")
                    ? fenced.lockAndGetToken(command.number("lease"), MILLISECONDS)
                    : fenced.lockAndGetToken();
        }
        if (command.has("lease")) {
            return fenced.tryLockAndGetToken(command.number("wait"), command.number("lease"), MILLISECONDS);
        }
        return command.has("wait")
                ? fenced.tryLockAndGetToken(command.number("wait"), MILLISECONDS)
                : fenced.tryLockAndGetToken();
    }
}
