import java.time.Duration;
import org.redisson.api.RSemaphore;

/** What a semaphore can be told. */
final class Semaphores {
    private Semaphores() {
    }

    static Object perform(Servers servers, Command command) throws InterruptedException {
        RSemaphore semaphore = servers.of(command.name()).getSemaphore(Servers.plain(command.name()));
        int permits = command.has("permits") ? command.count("permits") : 1;
        switch (command.operation()) {
            case "acquire" -> semaphore.acquire(permits);
            case "release" -> semaphore.release(permits);
            case "addPermits" -> semaphore.addPermits(command.count("permits"));
            default -> {
                return answer(servers, semaphore, permits, command);
            }
        }
        return Command.NOTHING;
    }

    private static Object answer(Servers servers, RSemaphore semaphore, int permits, Command command)
            throws InterruptedException {
        return switch (command.operation()) {
            case "tryAcquire" -> command.has("wait")
                    ? semaphore.tryAcquire(permits, Duration.ofMillis(command.number("wait")))
                    : semaphore.tryAcquire(permits);
            case "releaseIfExists" -> semaphore.releaseIfExists(command.count("permits"));
            case "availablePermits" -> semaphore.availablePermits();
            case "drainPermits" -> semaphore.drainPermits();
            case "trySetPermits" -> command.has("ttl")
                    ? semaphore.trySetPermits(command.count("permits"), Duration.ofMillis(command.number("ttl")))
                    : semaphore.trySetPermits(command.count("permits"));
            case "delete" -> semaphore.delete();
            case "remainTimeToLive" -> semaphore.remainTimeToLive();
            case "count" -> servers.count(command, () -> {
                semaphore.acquire();
                return semaphore::release;
            });
            default -> throw command.unknown();
        };
    }
}
