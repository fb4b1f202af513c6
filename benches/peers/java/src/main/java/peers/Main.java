package peers;

import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * One client process of the comparison, for the lock libraries of Java. benches/README.md describes its
 * arguments and rows.
 */
public final class Main {
    public static void main(String[] args) throws Exception {
        // A client process ends without cleaning up, on the server or in its threads, as benches/README.md
        // requires.
        try {
            run(options(args));
        } catch (Exception e) {
            System.err.println(e);
            Runtime.getRuntime().halt(1);
        }
        Runtime.getRuntime().halt(0);
    }

    private static void run(Map<String, String> options) throws Exception {
        var peer = Peers.named(options.get("peer"), Share.of(options));
        if (options.containsKey("version")) {
            System.out.println(peer.version());
            System.out.flush();
            return;
        }
        var start = Long.parseLong(options.get("start"));
        var end = Long.parseLong(options.get("end"));
        var hold = micros(options.get("hold-us"));
        var pause = micros(options.getOrDefault("pause-us", "0"));

        var locks = peer.connect(options.get("url"));
        // The first call connects, and loads a large part of the library. Neither is to be measured.
        var first = locks.lock(options.get("name") + ":" + options.get("id"));
        first.acquire();
        first.release();
        var waiters = new ArrayList<Waiter>();
        for (var i = Integer.parseInt(options.get("waiters")); i > 0; i--) {
            var waiter = new Waiter(locks.lock(options.get("name")), start, end, hold, pause);
            waiters.add(waiter);
            // The stacks are small, because there may be hundreds of threads.
            new Thread(null, waiter, "waiter", 256 * 1024).start();
        }
        var late = Waiter.monotonic() - start;
        if (late > 0) {
            System.err.println("ready " + late / 1_000_000 + " ms too late");
        }
        Waiter.sleepUntil(end);
        write(Path.of(options.get("out")), options.get("id"), end, waiters);
    }

    private static Duration micros(String number) {
        return Duration.ofNanos(1_000 * Long.parseLong(number));
    }

    private static void write(Path out, String id, long end, List<Waiter> waiters) throws IOException {
        try (var rows = new PrintWriter(Files.newBufferedWriter(out))) {
            for (var i = 0; i < waiters.size(); i++) {
                for (var row : waiters.get(i).rowsUntil(end)) {
                    rows.println(id + ":" + i + "," + row);
                }
            }
        }
    }

    /** Reads {@code --key value}; {@code --version} has no value. */
    private static Map<String, String> options(String[] args) {
        var options = new HashMap<String, String>();
        for (var i = 0; i < args.length; i++) {
            var key = args[i].substring(2);
            options.put(key, key.equals("version") ? "" : args[++i]);
        }
        return options;
    }
}
