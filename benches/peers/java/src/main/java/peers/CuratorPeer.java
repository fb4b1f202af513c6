package peers;

import java.util.function.BiFunction;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.ZooKeeper;

/** Curator on ZooKeeper, with one client for the process. Each thread is an owner. */
record CuratorPeer(BiFunction<CuratorFramework, String, Lock> kind) implements Peer {
    @Override
    public String version() {
        return Peer.jars(InterProcessMutex.class, ZooKeeper.class);
    }

    @Override
    public Locks connect(String url) throws Exception {
        // There is no default policy for a broken connection. In the comparison no connection breaks.
        CuratorFramework client = CuratorFrameworkFactory.newClient(url, new ExponentialBackoffRetry(1_000, 3));
        client.start();
        client.blockUntilConnected();
        return name -> kind.apply(client, "/" + name);
    }

    static Lock of(InterProcessLock lock) {
        return new Lock() {
            @Override
            public void acquire() throws Exception {
                lock.acquire();
            }

            @Override
            public void release() throws Exception {
                lock.release();
            }
        };
    }

    static Lock of(InterProcessSemaphoreV2 semaphore) {
        return new Lock() {
            private Lease lease;

            @Override
            public void acquire() throws Exception {
                lease = semaphore.acquire();
            }

            @Override
            public void release() {
                semaphore.returnLease(lease);
            }
        };
    }
}
