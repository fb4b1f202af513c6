package peers;

import io.lettuce.core.RedisClient;
import java.net.URI;
import java.util.function.Consumer;
import org.springframework.data.redis.connection.RedisStandaloneConfiguration;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.redis.util.RedisLockRegistry;

/** Spring Integration's lock registry, one for the process. Its threads first contend for a local lock. */
record SpringPeer(Consumer<RedisLockRegistry> settings) implements Peer {
    @Override
    public String version() {
        return Peer.jars(RedisLockRegistry.class, RedisClient.class);
    }

    @Override
    public Locks connect(String url) {
        var server = URI.create(url);
        var connections =
                new LettuceConnectionFactory(new RedisStandaloneConfiguration(server.getHost(), server.getPort()));
        connections.afterPropertiesSet();
        connections.start();
        var registry = new RedisLockRegistry(connections, "peers");
        settings.accept(registry);
        return name -> Peer.of(registry.obtain(name));
    }
}
