import static java.util.concurrent.TimeUnit.MILLISECONDS;

import org.redisson.api.RCountDownLatch;

/** What a latch can be told. */
final class Latches {
    private Latches() {
    }

    static Object perform(Servers servers, Command command) throws InterruptedException {
        RCountDownLatch latch = servers.of(command.name()).getCountDownLatch(Servers.plain(command.name()));
        switch (command.operation()) {
            case "countDown" -> latch.countDown();
            case "await" -> {
                if (command.has("wait")) {
                    return latch.await(command.number("wait"), MILLISECONDS);
                }
                latch.await();
            }
            default -> {
                return answer(latch, command);
            }
        }
        return Command.NOTHING;
    }

    private static Object answer(RCountDownLatch latch, Command command) {
        return switch (command.operation()) {
            case "trySetCount" -> latch.trySetCount(command.number("count"));
            case "getCount" -> latch.getCount();
            case "delete" -> latch.delete();
            default -> throw command.unknown();
        };
    }
}
