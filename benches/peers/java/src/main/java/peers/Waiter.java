package peers;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/** Takes, holds and releases the lock again and again, and records the times. */
final class Waiter implements Runnable {
    /** The pause after an error, so that errors do not become a flood of calls. */
    private static final Duration ERROR_PAUSE = Duration.ofMillis(50);

    /** One wait. A time is 0 if the event has not happened. */
    record Row(long asked, long granted, long released) {
        @Override
        public String toString() {
            return asked + "," + orEmpty(granted) + "," + orEmpty(released);
        }

        private static String orEmpty(long ns) {
            return ns == 0 ? "" : Long.toString(ns);
        }
    }

    private final Peer.Lock lock;
    private final long start;
    private final long end;
    private final Duration hold;
    private final Duration pause;
    private final List<Row> rows = new ArrayList<>();

    Waiter(Peer.Lock lock, long start, long end, Duration hold, Duration pause) {
        this.lock = lock;
        this.start = start;
        this.end = end;
        this.hold = hold;
        this.pause = pause;
    }

    /** The clock that all processes of the machine share: on Linux this is CLOCK_MONOTONIC. */
    static long monotonic() {
        return System.nanoTime();
    }

    static void sleepUntil(long ns) throws InterruptedException {
        var left = ns - monotonic();
        if (left > 0) {
            Thread.sleep(left / 1_000_000, (int) (left % 1_000_000));
        }
    }

    @Override
    public void run() {
        try {
            sleepUntil(start);
            for (var asked = monotonic(); asked < end; asked = monotonic()) {
                turn(asked);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void turn(long asked) throws InterruptedException {
        write(new Row(asked, 0, 0));
        // A call that is repeated after an error continues the same wait.
        while (!done("acquire", lock::acquire)) {
            Thread.sleep(ERROR_PAUSE.toMillis());
        }
        var granted = monotonic();
        rewrite(new Row(asked, granted, 0));
        sleep(hold);
        rewrite(new Row(asked, granted, monotonic()));
        if (!done("release", lock::release)) {
            Thread.sleep(ERROR_PAUSE.toMillis());
        }
        sleep(pause);
    }

    private static void sleep(Duration time) throws InterruptedException {
        if (!time.isZero()) {
            Thread.sleep(time.toMillis(), time.toNanosPart() % 1_000_000);
        }
    }

    private interface Call {
        void run() throws Exception;
    }

    private static boolean done(String what, Call call) {
        try {
            call.run();
            return true;
        } catch (Exception e) {
            System.err.println(what + ": " + e);
            return false;
        }
    }

    private synchronized void write(Row row) {
        rows.add(row);
    }

    private synchronized void rewrite(Row row) {
        rows.set(rows.size() - 1, row);
    }

    /** The rows so far. A grant after the end does not count. */
    synchronized List<Row> rowsUntil(long end) {
        return rows.stream()
                .map(row -> row.granted() > end ? new Row(row.asked(), 0, 0) : row)
                .toList();
    }
}
