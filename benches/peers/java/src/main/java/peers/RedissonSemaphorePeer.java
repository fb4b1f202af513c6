package peers;

import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RPermitExpirableSemaphore;

/** Redisson's semaphore whose permits have leases, with one client for the process. */
record RedissonSemaphorePeer(int capacity) implements Peer {
    private static final long LEASE_SECONDS = 30;

    @Override
    public String version() {
        return Peer.jars(Redisson.class);
    }

    @Override
    public Locks connect(String url) {
        var client = RedissonPeer.client(url);
        return name -> {
            var semaphore = client.getPermitExpirableSemaphore(name);
            // Only the first call of all processes has an effect.
            semaphore.trySetPermits(capacity);
            return of(semaphore);
        };
    }

    private static Lock of(RPermitExpirableSemaphore semaphore) {
        return new Lock() {
            private String permit;

            @Override
            public void acquire() throws InterruptedException {
                permit = semaphore.acquire(LEASE_SECONDS, TimeUnit.SECONDS);
            }

            @Override
            public void release() {
                semaphore.release(permit);
            }
        };
    }
}
