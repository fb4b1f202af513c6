package peers;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.ZooKeeper;

/** Curator's mutex on ZooKeeper, with one client for the process. Each thread is an owner. */
final class CuratorPeer implements Peer {
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
        return name -> of(new InterProcessMutex(client, "/" + name));
    }

    private static Lock of(InterProcessMutex lock) {
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
}
