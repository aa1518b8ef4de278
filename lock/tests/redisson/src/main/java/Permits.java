import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.util.List;
import org.redisson.api.RPermitExpirableSemaphore;

/** What a semaphore whose permits have leases can be told. */
final class Permits {
    /** What Redisson takes for a permit without a lease. */
    private static final long NO_LEASE = -1;

    private Permits() {
    }

    static Object perform(Servers servers, Command command) throws InterruptedException {
        RPermitExpirableSemaphore semaphore =
                servers.of(command.name()).getPermitExpirableSemaphore(Servers.plain(command.name()));
        switch (command.operation()) {
            case "release" -> semaphore.release(command.text("id"));
            case "releaseAll" -> semaphore.release(ids(command));
            case "setPermits" -> semaphore.setPermits(command.count("permits"));
            case "addPermits" -> semaphore.addPermits(command.count("permits"));
            default -> {
                return answer(servers, semaphore, command);
            }
        }
        return Command.NOTHING;
    }

    private static Object answer(Servers servers, RPermitExpirableSemaphore semaphore, Command command)
            throws InterruptedException {
        return switch (command.operation()) {
            case "acquire" -> acquire(semaphore, command);
            case "tryAcquire" -> tryAcquire(semaphore, command);
            case "tryRelease" -> semaphore.tryRelease(command.text("id"));
            case "tryReleaseAll" -> semaphore.tryRelease(ids(command));
            case "availablePermits" -> semaphore.availablePermits();
            case "acquiredPermits" -> semaphore.acquiredPermits();
            case "getPermits" -> semaphore.getPermits();
            case "trySetPermits" -> semaphore.trySetPermits(command.count("permits"));
            case "updateLeaseTime" ->
                semaphore.updateLeaseTime(command.text("id"), command.number("lease"), MILLISECONDS);
            case "getLeaseTime" -> semaphore.getLeaseTime(command.text("id"));
            case "delete" -> semaphore.delete();
            case "remainTimeToLive" -> semaphore.remainTimeToLive();
            case "count" -> servers.count(command, () -> {
                String id = semaphore.acquire();
                return () -> semaphore.release(id);
            });
            default -> throw command.unknown();
        };
    }

    private static Object acquire(RPermitExpirableSemaphore semaphore, Command command) throws InterruptedException {
        boolean leased = command.has("lease");
        if (command.has("permits")) {
            int permits = command.count("permits");
            return leased
                    ? semaphore.acquire(permits, command.number("lease"), MILLISECONDS)
                    : semaphore.acquire(permits);
        }
        return leased ? semaphore.acquire(command.number("lease"), MILLISECONDS) : semaphore.acquire();
    }

    private static Object tryAcquire(RPermitExpirableSemaphore semaphore, Command command)
            throws InterruptedException {
        if (!command.has("wait")) {
            return command.has("permits") ? semaphore.tryAcquire(command.count("permits")) : semaphore.tryAcquire();
        }
        long wait = command.number("wait");
        long lease = command.has("lease") ? command.number("lease") : NO_LEASE;
        if (command.has("permits")) {
            return semaphore.tryAcquire(command.count("permits"), wait, lease, MILLISECONDS);
        }
        return command.has("lease")
                ? semaphore.tryAcquire(wait, lease, MILLISECONDS)
                : semaphore.tryAcquire(wait, MILLISECONDS);
    }

    private static List<String> ids(Command command) {
        return List.of(command.text("ids").split(","));
    }
}
