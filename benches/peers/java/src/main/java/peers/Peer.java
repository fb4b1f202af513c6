package peers;

/** A library with its settings. */
interface Peer {
    /** The name and version of the library in this program. */
    String version();

    /** Connects this process. */
    Locks connect(String url) throws Exception;

    /** The connection of this process. */
    interface Locks {
        /** The lock of that name, for another waiter. */
        Lock lock(String name) throws Exception;
    }

    interface Lock {
        /** Returns when this waiter holds the lock. After an exception it is called again. */
        void acquire() throws Exception;

        void release() throws Exception;
    }

    static Lock of(java.util.concurrent.locks.Lock lock) {
        return new Lock() {
            @Override
            public void acquire() {
                lock.lock();
            }

            @Override
            public void release() {
                lock.unlock();
            }
        };
    }

    /** The names of the JAR files of these classes, which contain their versions. */
    static String jars(Class<?>... classes) {
        var names = new StringBuilder();
        for (var each : classes) {
            var path = each.getProtectionDomain().getCodeSource().getLocation().getPath();
            var file = path.substring(path.lastIndexOf('/') + 1).replaceAll("(\\.RELEASE)?\\.jar$", "");
            names.append(names.isEmpty() ? "" : ", ").append(file.replaceFirst("-(?=\\d)", " "));
        }
        return names.toString();
    }
}
