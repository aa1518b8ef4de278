import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Hands a lock over to a waiter of another client, once for each line it reads, and prints the time of it. */
public final class RedissonHandOver {
    private static final String NAME = "bench:java";
    private static final int UNTIL_WARM = 2000;

    private RedissonHandOver() {
    }

    public static void main(String[] arguments) throws Exception {
        RedissonClient one = client(arguments[0]);
        RedissonClient other = client(arguments[0]);
        RLock held = one.getLock(NAME);
        RLock waited = other.getLock(NAME);
        BlockingQueue<Boolean> waits = new ArrayBlockingQueue<>(1);
        BlockingQueue<Long> owned = new ArrayBlockingQueue<>(1);
        BlockingQueue<Boolean> released = new ArrayBlockingQueue<>(1);
        Thread waiter = new Thread(() -> {
            try {
                while (waits.take()) {
                    waited.lock();
                    owned.put(System.nanoTime());
                    waited.unlock();
                    released.put(true);
                }
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
        });
        waiter.setDaemon(true);
        waiter.start();

        for (int turn = 0; turn < UNTIL_WARM; turn++) {
            handOver(held, waits, owned, released, 1);
        }
        System.out.println("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        while (input.readLine() != null) {
            System.out.println(handOver(held, waits, owned, released, 3));
        }
        Runtime.getRuntime().halt(0);
    }

    private static long handOver(
            RLock held, BlockingQueue<Boolean> waits, BlockingQueue<Long> owned, BlockingQueue<Boolean> released,
            long settle) throws InterruptedException {
        held.lock();
        waits.put(true);
        // Until the waiter has tried, subscribed, tried again and fallen asleep.
        Thread.sleep(settle);
        long start = System.nanoTime();
        held.unlock();
        long took = owned.take() - start;
        released.take();
        return took;
    }

    private static RedissonClient client(String address) {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + address);
        return Redisson.create(config);
    }
}
