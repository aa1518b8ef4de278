import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Waits for a lock behind sentinels, once for each line it reads, and prints when it owns the lock. */
public final class RedissonFailover {
    private RedissonFailover() {
    }

    public static void main(String[] arguments) throws Exception {
        Config config = new Config();
        var sentinels = config.useSentinelServers().setMasterName(arguments[0]);
        for (String address : arguments[2].split(",")) {
            sentinels.addSentinelAddress("redis://" + address);
        }
        RedissonClient client = Redisson.create(config);
        RLock lock = client.getLock(arguments[1]);
        System.out.println("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        while (input.readLine() != null) {
            lock.lock();
            System.out.println("owned");
            try {
                lock.unlock();
            } catch (RuntimeException failed) {
                System.err.println(failed);
            }
        }
        Runtime.getRuntime().halt(0);
    }
}
