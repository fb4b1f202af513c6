package peers;

import java.util.function.BiFunction;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson, with one client for the process. Each thread is an owner. */
record RedissonPeer(BiFunction<RedissonClient, String, RLock> kind) implements Peer {
    @Override
    public String version() {
        return Peer.jars(Redisson.class);
    }

    @Override
    public Locks connect(String url) {
        var config = new Config();
        config.useSingleServer().setAddress(url);
        var redisson = Redisson.create(config);
        return name -> Peer.of(kind.apply(redisson, name));
    }
}
