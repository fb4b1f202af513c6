package peers;

import java.time.Duration;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.redisson.api.LockOptions.ExponentialBackOff;
import org.springframework.integration.redis.util.RedisLockRegistry.RedisLockType;

/** The libraries that this program knows, by name. */
final class Peers {
    private Peers() {}

    static Peer named(String name, Share share) {
        return switch (name) {
            case "redisson" -> new RedissonPeer((redisson, lock) -> redisson.getLock(lock));
            case "redisson-fair" -> new RedissonPeer((redisson, lock) -> redisson.getFairLock(lock));
            case "redisson-spin" -> new RedissonPeer((redisson, lock) -> redisson.getSpinLock(lock));
            case "redisson-spin-tuned" -> {
                var backOff = new ExponentialBackOff().maxDelay(16);
                yield new RedissonPeer((redisson, lock) -> redisson.getSpinLock(lock, backOff));
            }
            // The defaults of the library.
            case "spring" -> new SpringPeer(registry -> {});
            case "spring-tuned" -> new SpringPeer(registry -> registry.setIdleBetweenTries(Duration.ofMillis(10)));
            case "spring-pubsub" -> new SpringPeer(registry -> registry.setRedisLockType(RedisLockType.PUB_SUB_LOCK));
            case "redisson-rw" -> new RedissonPeer((redisson, lock) -> {
                var both = redisson.getReadWriteLock(lock);
                return share.writes() ? both.writeLock() : both.readLock();
            });
            case "redisson-semaphore" -> new RedissonSemaphorePeer(share.capacity());
            case "curator" -> new CuratorPeer((client, path) ->
                    CuratorPeer.of(new InterProcessMutex(client, path)));
            case "curator-rw" -> new CuratorPeer((client, path) -> {
                var both = new InterProcessReadWriteLock(client, path);
                return CuratorPeer.of(share.writes() ? both.writeLock() : both.readLock());
            });
            case "curator-semaphore" -> new CuratorPeer((client, path) ->
                    CuratorPeer.of(new InterProcessSemaphoreV2(client, path, share.capacity())));
            default -> throw new IllegalArgumentException("no such peer: " + name);
        };
    }
}
