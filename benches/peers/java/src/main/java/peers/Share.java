package peers;

import java.util.Map;

/** What the waiters of this process share, if it is no lock: a side of a read/write lock, or a semaphore. */
record Share(boolean writes, int capacity) {
    static Share of(Map<String, String> options) {
        return new Share(
                options.getOrDefault("side", "lock").equals("write"),
                Integer.parseInt(options.getOrDefault("capacity", "1")));
    }
}
