package peers;

import java.util.Arrays;
import java.util.function.BiFunction;
import org.redisson.Redisson;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Redisson, with one client for the process and server. Each thread is an owner. With the URLs of several
 * servers, separated by commas, a lock is a RedLock of the locks of these servers.
 */
record RedissonPeer(BiFunction<RedissonClient, String, RLock> kind) implements Peer {
    @Override
    public String version() {
        return Peer.jars(Redisson.class);
    }

    @Override
    public Locks connect(String url) {
        var clients = Arrays.stream(url.split(",")).map(RedissonPeer::client).toList();
        return name -> {
            var locks = clients.stream().map(client -> kind.apply(client, name)).toArray(RLock[]::new);
            return Peer.of(locks.length == 1 ? locks[0] : new RedissonRedLock(locks));
        };
    }

    static RedissonClient client(String url) {
        var config = new Config();
        config.useSingleServer().setAddress(url);
        return Redisson.create(config);
    }
}
