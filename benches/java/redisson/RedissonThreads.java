import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Locks and unlocks with many threads of one client, on locks of their own or on one lock. The report starts this
 * program, and says when to measure.
 */
public final class RedissonThreads {
    private static final String HOT = "bench:hot";
    private static final int SETTLING = 0;
    private static final int MEASURING = 1;
    private static final int OVER = 2;
    /** Until the compiler has done most of its work. */
    private static final long WARM_UP_MILLIS = 3000;

    private static volatile int phase;

    private RedissonThreads() {
    }

    public static void main(String[] arguments) throws Exception {
        boolean isHot = arguments[0].equals("hot");
        int threads = Integer.parseInt(arguments[3]);
        long section = 1000 * Long.parseLong(arguments[4]);
        long settle = Long.parseLong(arguments[5]);
        long window = Long.parseLong(arguments[6]);

        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + arguments[2]);
        RedissonClient client = Redisson.create(config);

        // On other names: what is measured may be in use by other processes.
        Work[] first = works(client, "warm:", isHot, threads, section);
        run(first, 0, WARM_UP_MILLIS, () -> { });
        for (Work work : first) {
            work.join();
        }
        Work[] works = works(client, "", isHot, threads, section);
        System.out.println("ready");
        new BufferedReader(new InputStreamReader(System.in)).readLine();

        long[] processor = new long[1];
        double seconds = run(works, settle, window, () -> {
            System.out.println("begun");
            processor[0] = processorTime();
        });
        processor[0] = processorTime() - processor[0];
        System.out.println("over");
        long count = 0;
        long[] samples = new long[0];
        for (Work work : works) {
            work.join();
            count += work.count;
            int length = samples.length;
            samples = Arrays.copyOf(samples, length + work.taken);
            System.arraycopy(work.samples, 0, samples, length, work.taken);
        }
        Arrays.sort(samples);
        double p50 = at(samples, 500);
        double p99 = at(samples, 990);
        double longest = at(samples, 1000);
        System.out.println(String.format(
                Locale.ROOT, "pairs=%.3f p50=%.3f p99=%.3f wait-p50=%.6f wait-p99=%.6f wait-max=%.6f client-each=%.3f",
                count / seconds, p50, p99, p50 / 1000, p99 / 1000, longest / 1000, processor[0] / 1000.0 / count));
        // At once: a shutdown takes seconds.
        Runtime.getRuntime().halt(0);
    }

    private static Work[] works(RedissonClient client, String prefix, boolean isHot, int threads, long section) {
        Work[] works = new Work[threads];
        for (int number = 0; number < threads; number++) {
            String name = isHot ? HOT : String.format(Locale.ROOT, "bench:own:%04d", number);
            works[number] = new Work(client.getLock(prefix + name), isHot, section);
        }
        return works;
    }

    /** Returns the seconds of the window. */
    private static double run(Work[] works, long settle, long window, Runnable begins) throws InterruptedException {
        phase = SETTLING;
        CountDownLatch together = new CountDownLatch(1);
        for (Work work : works) {
            work.together = together;
            work.start();
        }
        together.countDown();
        Thread.sleep(settle);
        begins.run();
        long start = System.nanoTime();
        phase = MEASURING;
        Thread.sleep(window);
        phase = OVER;
        return (System.nanoTime() - start) / 1e9;
    }

    /** Of all threads, also of those that have ended, in nanoseconds. It has steps of 10 ms. */
    private static long processorTime() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    /** The sample that a number of a thousand do not exceed, in microseconds. */
    private static double at(long[] samples, int permille) {
        if (samples.length == 0) {
            return Double.NaN;
        }
        return samples[Math.min((int) ((long) samples.length * permille / 1000), samples.length - 1)] / 1000.0;
    }

    /** Counts what ends in the window. Its time is a sample, and so is that of what ends after the window. */
    private static final class Work extends Thread {
        private final RLock lock;
        private final boolean isHot;
        private final long section;
        private CountDownLatch together;
        private long[] samples = new long[1024];
        private int taken;
        private long count;

        Work(RLock lock, boolean isHot, long section) {
            super(null, null, "bench-work", 256 * 1024);
            setDaemon(true);
            this.lock = lock;
            this.isHot = isHot;
            this.section = section;
        }

        @Override
        public void run() {
            try {
                together.await();
            } catch (InterruptedException ended) {
                return;
            }
            while (phase != OVER) {
                long start = System.nanoTime();
                lock.lock();
                long entered = System.nanoTime();
                while (section > 0 && System.nanoTime() - entered < section) {
                    Thread.onSpinWait();
                }
                lock.unlock();
                long sample = (isHot ? entered : System.nanoTime()) - start;
                int now = phase;
                if (now == MEASURING) {
                    count++;
                }
                if (now != SETTLING) {
                    if (taken == samples.length) {
                        samples = Arrays.copyOf(samples, 2 * taken);
                    }
                    samples[taken++] = sample;
                }
            }
        }
    }
}
