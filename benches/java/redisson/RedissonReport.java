import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Holds locks with Redisson's watchdog. The report starts this program, and says when to measure. */
public final class RedissonReport {
    private RedissonReport() {
    }

    public static void main(String[] arguments) throws Exception {
        String address = arguments[0];
        int held = Integer.parseInt(arguments[1]);
        long lease = Long.parseLong(arguments[2]);
        long window = Long.parseLong(arguments[3]);

        Config config = new Config();
        config.setLockWatchdogTimeout(lease);
        config.useSingleServer().setAddress("redis://" + address);
        RedissonClient client = Redisson.create(config);
        // No lock: after one that was released, Redisson renews twice in each interval.
        client.getKeys().count();
        // Until the compiler is quiet.
        Thread.sleep(4000);
        double idle = shareOf(2000);

        RLock[] locks = new RLock[held];
        long before = usedHeap();
        for (int number = 0; number < held; number++) {
            locks[number] = client.getLock(String.format(Locale.ROOT, "bench:lock:%06d", number));
            locks[number].lock();
        }
        // A collection now, so that it takes no processor time later, and so that garbage is not counted.
        double memory = (usedHeap() - before) / (double) held;
        System.out.println("ready");
        new BufferedReader(new InputStreamReader(System.in)).readLine();

        double percent = shareOf(window);
        // The report counts lost locks on the server: Redisson does not report them.
        System.out.println(String.format(
                Locale.ROOT, "percent=%.6f idle=%.6f memory=%.3f threads=%d",
                percent, idle, memory, threads() - 1));
        // At once. The locks stay referenced until here.
        Runtime.getRuntime().halt(locks.length == held ? 0 : 1);
    }

    private static double shareOf(long millis) throws InterruptedException {
        long before = processorTime();
        long start = System.nanoTime();
        Thread.sleep(millis);
        return 100.0 * (processorTime() - before) / (System.nanoTime() - start);
    }

    /** Of all threads, with the collector's and the compiler's, in nanoseconds. Java's own has steps of 10 ms. */
    private static long processorTime() {
        long sum = 0;
        try (DirectoryStream<Path> tasks = Files.newDirectoryStream(Path.of("/proc/self/task"))) {
            for (Path task : tasks) {
                sum += Long.parseLong(Files.readString(task.resolve("schedstat")).split(" ")[0]);
            }
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
        return sum;
    }

    private static int threads() throws IOException {
        int count = 0;
        try (DirectoryStream<Path> tasks = Files.newDirectoryStream(Path.of("/proc/self/task"))) {
            for (Path ignored : tasks) {
                count++;
            }
        }
        return count;
    }

    private static long usedHeap() throws InterruptedException {
        for (int turn = 0; turn < 3; turn++) {
            System.gc();
            Thread.sleep(50);
        }
        Runtime runtime = Runtime.getRuntime();
        return runtime.totalMemory() - runtime.freeMemory();
    }
}
