import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Waits for each lock whose name it reads, says that it has the lock, releases the lock, and says so. */
public final class RedissonWaiter {
    private static final int UNTIL_WARM = 2000;

    private RedissonWaiter() {
    }

    public static void main(String[] arguments) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + arguments[0]);
        RedissonClient client = Redisson.create(config);
        RLock warm = client.getLock("bench:warm");
        for (int turn = 0; turn < UNTIL_WARM; turn++) {
            warm.lock();
            warm.unlock();
        }
        System.out.println("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        String name;
        while ((name = input.readLine()) != null) {
            RLock lock = client.getLock(name);
            lock.lock();
            System.out.println("owned");
            lock.unlock();
            System.out.println("released");
        }
        Runtime.getRuntime().halt(0);
    }
}
