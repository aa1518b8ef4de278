import io.netty.util.HashedWheelTimer;
import io.netty.util.Timeout;
import io.netty.util.TimerTask;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Field;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Queue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** Netty's timer under the workloads of the report, which starts this program. */
public final class NettyReport {
    private static final int MILLION = 1_000_000;
    private static final long SECOND = 1_000_000_000L;
    private static final String THREAD = "netty-timer";
    /** They live as long as the program: the processor time of a thread that has ended is not counted. */
    private static final ExecutorService WORKERS = Executors.newFixedThreadPool(2);

    private final HashedWheelTimer timer;
    private final Queue<?> incoming;
    private final Queue<?> cancelled;
    private final long window;

    private NettyReport(int buckets, long window) throws ReflectiveOperationException {
        timer = new HashedWheelTimer(task -> new Thread(task, THREAD), 1, TimeUnit.MILLISECONDS, buckets, false);
        incoming = queue("timeouts");
        cancelled = queue("cancelledTimeouts");
        this.window = window;
        timer.start();
    }

    public static void main(String[] arguments) throws Exception {
        int buckets = Integer.parseInt(arguments[1]);
        long window = (long) (Double.parseDouble(arguments[2]) * SECOND);
        NettyReport report = new NettyReport(buckets, window);
        switch (arguments[0]) {
            case "pairs-1" -> report.pairs(1);
            case "pairs-2" -> report.pairs(2);
            case "fill-1" -> report.fill(1);
            case "fill-2" -> report.fill(2);
            case "memory" -> report.memory(5, 60);
            case "memory-hour" -> report.memory(60, 3600);
            case "rounds" -> report.rounds();
            case "fire" -> report.fire();
            case "burst" -> report.burst();
            case "rearm" -> report.rearm();
            case "hold" -> report.hold();
            case "idle" -> report.idle();
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        System.exit(0);
    }

    // Schedule and cancel at once.

    private void pairs(int threads) throws InterruptedException {
        final int pairs = 500_000;
        final int warmUp = 5;
        final int rounds = 3;
        double[] wall = new double[rounds];
        double[] processor = new double[rounds];
        TimerTask task = timeout -> { };
        for (int round = -warmUp; round < rounds; round++) {
            CountDownLatch ready = new CountDownLatch(threads);
            long[] took = new long[threads];
            long before = processorTime();
            inParts(threads, number -> {
                Random random = new Random(number + 1);
                ready.countDown();
                while (ready.getCount() > 0) {
                    Thread.onSpinWait();
                }
                took[number] = onePart(pairs, random, task);
            });
            waitUntilFreed();
            if (round >= 0) {
                double all = (double) pairs * threads;
                wall[round] = Arrays.stream(took).sum() / all;
                processor[round] = (processorTime() - before) / all;
            }
        }
        print("wall", median(wall), "processor", median(processor));
    }

    private long onePart(int pairs, Random random, TimerTask task) {
        long start = System.nanoTime();
        for (int pair = 0; pair < pairs; pair++) {
            timer.newTimeout(task, random.delay(1, 60), TimeUnit.NANOSECONDS).cancel();
        }
        return System.nanoTime() - start;
    }

    // A million scheduled, then cancelled in random order.

    private void fill(int threads) throws InterruptedException {
        final int warmUp = 3;
        final int rounds = 4;
        double[][] figures = new double[5][rounds];
        double[] fresh = new double[2];
        Timeout[] slots = new Timeout[MILLION];
        int part = MILLION / threads;
        for (int round = -warmUp; round < rounds; round++) {
            long seed = (round + warmUp) * 10L;
            long before = processorTime();
            long scheduleCall = inParts(threads, number -> {
                Random random = new Random(seed + number + 1);
                for (int place = number * part; place < (number + 1) * part; place++) {
                    long name = place;
                    slots[place] = timer.newTimeout(
                            timeout -> Record.fired(name), random.delay(1, 60), TimeUnit.NANOSECONDS);
                }
            });
            waitUntilAbsorbed();
            double schedule = (processorTime() - before) / (double) MILLION;

            new Random(seed + 100).shuffle(slots);
            before = processorTime();
            long cancelCall = inParts(threads, number -> {
                for (int place = number * part; place < (number + 1) * part; place++) {
                    slots[place].cancel();
                    slots[place] = null;
                }
            });
            waitUntilFreed();
            double letGo = (processorTime() - before) / (double) MILLION;
            // Memory is free when it has been collected.
            System.gc();
            double cancel = (processorTime() - before) / (double) MILLION;

            if (round == -warmUp) {
                fresh = new double[] {schedule, cancel};
            } else if (round >= 0) {
                figures[0][round] = schedule;
                figures[1][round] = cancel;
                figures[2][round] = scheduleCall / (double) part;
                figures[3][round] = cancelCall / (double) part;
                figures[4][round] = letGo;
            }
        }
        print("schedule", mean(figures[0]), "schedule-fresh", fresh[0], "schedule-call", mean(figures[2]),
                "cancel", mean(figures[1]), "cancel-let-go", mean(figures[4]), "cancel-fresh", fresh[1], "cancel-call", mean(figures[3]));
    }

    private interface Part {
        void run(int number);
    }

    private static long inParts(int threads, Part part) throws InterruptedException {
        List<Future<?>> workers = new ArrayList<>();
        long start = System.nanoTime();
        for (int number = 0; number < threads; number++) {
            int own = number;
            workers.add(WORKERS.submit(() -> part.run(own)));
        }
        for (Future<?> worker : workers) {
            try {
                worker.get();
            } catch (ExecutionException failure) {
                throw new IllegalStateException(failure);
            }
        }
        return System.nanoTime() - start;
    }

    // Memory.

    private void memory(long from, long to) throws InterruptedException {
        Timeout[] slots = new Timeout[MILLION];
        Random random = new Random(1);
        long before = usedHeap();
        for (int place = 0; place < MILLION; place++) {
            long name = place;
            slots[place] = timer.newTimeout(
                    timeout -> Record.fired(name), random.delay(from, to), TimeUnit.NANOSECONDS);
        }
        waitUntilAbsorbed();
        print("bytes", (usedHeap() - before) / (double) MILLION);
        if (slots[MILLION - 1].isExpired()) {
            throw new IllegalStateException("nothing is due yet");
        }
    }

    private static long usedHeap() throws InterruptedException {
        for (int turn = 0; turn < 3; turn++) {
            System.gc();
            Thread.sleep(50);
        }
        return ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed();
    }

    // A million pending.

    private void hold() throws InterruptedException {
        pend(40, 60);
        Thread.sleep(2000);
        print("percent", percentOf(window));
    }

    private void pend(long from, long to) throws InterruptedException {
        Random random = new Random(1);
        for (int place = 0; place < MILLION; place++) {
            long name = place;
            timer.newTimeout(timeout -> Record.fired(name), random.delay(from, to), TimeUnit.NANOSECONDS);
        }
        waitUntilAbsorbed();
    }

    private void rounds() throws InterruptedException {
        final long step = 10_000_000L;
        pend(60, 3600);
        requests(SECOND / 2); // a warm-up of the compiler
        Thread.sleep(2000);
        double nothingDue = percentOf(window);
        long start = System.nanoTime();
        long ticks = (window + 2 * step) / 1_000_000L;
        for (long tick = 1; tick <= ticks; tick++) {
            timer.newTimeout(timeout -> Record.fired(0), start + tick * 1_000_000L - System.nanoTime(),
                    TimeUnit.NANOSECONDS);
        }
        Thread.sleep(10);
        double oneDue = percentOf(window);
        Thread.sleep(20);
        long before = processorTime();
        start = System.nanoTime();
        requests(window);
        double requests = 100.0 * (processorTime() - before) / (System.nanoTime() - start);
        print("a", nothingDue, "b", oneDue, "c", requests);
    }

    private void requests(long window) throws InterruptedException {
        final long step = 10_000_000L;
        ArrayDeque<Timeout[]> open = new ArrayDeque<>();
        long start = System.nanoTime();
        long next = start;
        while (next - start < window) {
            Timeout[] timeouts = new Timeout[1000];
            for (int place = 0; place < timeouts.length; place++) {
                long name = place;
                timeouts[place] = timer.newTimeout(timeout -> Record.fired(name), 5, TimeUnit.SECONDS);
            }
            open.add(timeouts);
            if (open.size() > 10) {
                for (Timeout timeout : open.poll()) {
                    timeout.cancel();
                }
            }
            next += step;
            long rest = next - System.nanoTime();
            if (rest > 0) {
                TimeUnit.NANOSECONDS.sleep(rest);
            }
        }
    }

    // A million due.

    private void fire() throws InterruptedException {
        for (int turn = 0; turn < 3; turn++) {
            fireAll(300_000, SECOND / 2, 1000);
        }
        long first = fireAll(MILLION, 6 * SECOND / 5, 1000);
        double[] late = new double[MILLION];
        int early = 0;
        int count = 0;
        for (int number = 0; number < MILLION; number++) {
            long by = Record.times[number] - (first + number * 1000L);
            if (by < 0) {
                early++;
            } else {
                late[count++] = by / 1e6;
            }
        }
        Arrays.sort(late, 0, count);
        print("early", early, "p50", late[count / 2], "p99", late[(int) (count * 99L / 100)],
                "max", late[count - 1]);
    }

    private void burst() throws InterruptedException {
        for (int turn = 0; turn < 3; turn++) {
            fireAll(300_000, SECOND / 2, 0);
        }
        fireAll(MILLION, 6 * SECOND / 5, 0);
        long least = Arrays.stream(Record.times).min().orElseThrow();
        long most = Arrays.stream(Record.times).max().orElseThrow();
        print("burst", MILLION / ((most - least) / 1e9) / 1e6);
    }

    /** Returns when the first was due. */
    private long fireAll(int count, long lead, long apart) throws InterruptedException {
        Record.clear();
        long first = System.nanoTime() + lead;
        Integer[] order = new Integer[count];
        Arrays.setAll(order, place -> place);
        if (apart > 0) {
            new Random(1).shuffle(order);
        }
        for (int number : order) {
            timer.newTimeout(timeout -> Record.fired(number), first + number * apart - System.nanoTime(),
                    TimeUnit.NANOSECONDS);
        }
        while (Record.count() < count) {
            Thread.sleep(20);
        }
        return first;
    }

    // Timeouts that re-arm themselves.

    private void rearm() throws InterruptedException {
        long first = System.nanoTime() + SECOND / 2;
        for (int number = 0; number < 100_000; number++) {
            arm(first + number * 10_000L);
        }
        Thread.sleep(3000);
        print("percent", percentOf(window));
    }

    private void arm(long deadline) {
        timer.newTimeout(timeout -> arm(deadline + SECOND), deadline - System.nanoTime(), TimeUnit.NANOSECONDS);
    }

    // Nothing pending.

    private void idle() throws InterruptedException, IOException {
        for (int number = 0; number < 1000; number++) {
            timer.newTimeout(timeout -> { }, 100, TimeUnit.MILLISECONDS);
        }
        Thread.sleep(4000);
        long before = sleeps();
        TimeUnit.NANOSECONDS.sleep(window);
        print("wakes", sleeps() - before);
    }

    private static long sleeps() throws IOException {
        long sum = 0;
        try (DirectoryStream<Path> tasks = Files.newDirectoryStream(Path.of("/proc/self/task"))) {
            for (Path task : tasks) {
                if (Files.readString(task.resolve("comm")).trim().equals(THREAD)) {
                    for (String line : Files.readAllLines(task.resolve("status"))) {
                        if (line.startsWith("voluntary_ctxt_switches:")) {
                            sum += Long.parseLong(line.split("\\s+")[1]);
                        }
                    }
                }
            }
        }
        return sum;
    }

    // Shared parts.

    private Queue<?> queue(String name) throws ReflectiveOperationException {
        Field field = HashedWheelTimer.class.getDeclaredField(name);
        field.setAccessible(true);
        return (Queue<?>) field.get(timer);
    }

    private void waitUntilAbsorbed() throws InterruptedException {
        while (!incoming.isEmpty()) {
            Thread.sleep(1);
        }
    }

    /** A timeout that is cancelled early leaves with the queue of new timeouts. */
    private void waitUntilFreed() throws InterruptedException {
        while (!cancelled.isEmpty() || !incoming.isEmpty()) {
            Thread.sleep(1);
        }
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

    private static double percentOf(long window) throws InterruptedException {
        long before = processorTime();
        long start = System.nanoTime();
        TimeUnit.NANOSECONDS.sleep(window);
        return 100.0 * (processorTime() - before) / (System.nanoTime() - start);
    }

    private static double median(double[] numbers) {
        Arrays.sort(numbers);
        return numbers[numbers.length / 2];
    }

    private static double mean(double[] numbers) {
        return Arrays.stream(numbers).average().orElseThrow();
    }

    private static void print(Object... namesAndNumbers) {
        StringBuilder line = new StringBuilder();
        for (int place = 0; place < namesAndNumbers.length; place += 2) {
            double number = ((Number) namesAndNumbers[place + 1]).doubleValue();
            line.append(String.format(Locale.ROOT, "%s=%.6f ", namesAndNumbers[place], number));
        }
        System.out.println(line.toString().trim());
    }

    /** When each timeout fired. Only the worker writes. */
    private static final class Record {
        static long[] times = new long[MILLION];
        private static final AtomicInteger COUNT = new AtomicInteger();
        private static int fired;

        static void clear() {
            fired = 0;
            COUNT.set(0);
        }

        static int count() {
            return COUNT.get();
        }

        static void fired(long number) {
            times[(int) number] = System.nanoTime();
            COUNT.lazySet(++fired);
        }
    }

    /** xorshift64*, as in the report. */
    private static final class Random {
        private long state;

        Random(long seed) {
            state = seed * 0x9e3779b97f4a7c15L | 1;
        }

        long next() {
            state ^= state >>> 12;
            state ^= state << 25;
            state ^= state >>> 27;
            return state * 0x2545f4914f6cdd1dL;
        }

        /** Uniform between two numbers of seconds, in nanoseconds. */
        long delay(long from, long to) {
            long micros = (to - from) * 1_000_000L;
            return (from * 1_000_000L + (((next() >>> 40) * micros) >>> 24)) * 1000L;
        }

        <T> void shuffle(T[] list) {
            for (int length = list.length; length >= 2; length--) {
                int place = (int) Long.remainderUnsigned(next() >>> 32, length);
                T last = list[length - 1];
                list[length - 1] = list[place];
                list[place] = last;
            }
        }
    }
}
