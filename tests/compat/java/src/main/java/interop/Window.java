/** What a load has done, and the measured stretch of it: warm up, tell that it begins, tell what was counted. */
package interop;

import java.time.LocalTime;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;

final class Window {
    private static final long STEP_MS = 50;
    private static final long STUCK_MS = 60_000;
    private static final int TOLD_MAX = 20;

    private final LongAdder done = new LongAdder();
    private final LongAdder failed = new LongAdder();
    private final AtomicInteger told = new AtomicInteger();
    private final Latencies latencies = new Latencies();
    private volatile boolean measuring;
    private volatile boolean full;

    /** One message made it; it took `ns`. */
    void succeed(long ns) {
        succeed(ns, 1);
    }

    /** So many messages made it together. */
    void succeed(long ns, int messages) {
        done.add(messages);
        if (measuring) {
            latencies.add(ns);
        }
    }

    /** One did not make it; the first few texts are told on standard error, with all that led to them. */
    void fail(Object why) {
        failed.increment();
        if (told.incrementAndGet() > TOLD_MAX) {
            return;
        }
        System.err.println("failed: " + LocalTime.now() + " " + why);
        Throwable cause = why instanceof Throwable ? ((Throwable) why).getCause() : null;
        for (; cause != null; cause = cause.getCause()) {
            System.err.println("  because of " + cause);
        }
    }

    /** Waits until so many messages made it; fails if no further one does for a minute. */
    void await(long messages) throws InterruptedException {
        long seen = 0;
        long since = System.nanoTime();
        for (long now = done.sum(); now < messages; now = done.sum()) {
            if (now > seen) {
                seen = now;
                since = System.nanoTime();
            } else if (System.nanoTime() - since > STUCK_MS * 1_000_000) {
                throw new IllegalStateException(seen + " of " + messages + " were stored, and no more");
            }
            Thread.sleep(STEP_MS);
        }
    }

    /** Nothing more comes: there is no use in measuring on. */
    void end() {
        full = true;
    }

    /** Lets the load run for the two times and tells what the windows saw of the second one. */
    static void measure(long warmUpMs, long measureMs, Window sent, Window counted, Window timed, Window other)
            throws InterruptedException {
        Thread.sleep(warmUpMs);
        long doneBefore = counted.done.sum();
        long failedBefore = sent.failed.sum();
        long otherBefore = other == null ? 0 : other.done.sum();
        timed.measuring = true;
        long began = System.nanoTime();
        Lines.print(Lines.event("begins"));
        long end = began + measureMs * 1_000_000;
        while (System.nanoTime() < end && !sent.full) {
            Thread.sleep(Math.min(STEP_MS, measureMs));
        }
        long doneAfter = counted.done.sum();
        long failedAfter = sent.failed.sum();
        long otherAfter = other == null ? 0 : other.done.sum();
        long ended = System.nanoTime();
        timed.measuring = false;
        Map<String, Object> event = Lines.event("ends");
        event.put("messages", doneAfter - doneBefore);
        event.put("failures", failedAfter - failedBefore);
        event.put("seconds", (ended - began) / 1e9);
        event.put("p50Ms", timed.latencies.quantileMs(0.50));
        event.put("p99Ms", timed.latencies.quantileMs(0.99));
        event.put("maxMs", timed.latencies.longestMs());
        if (other != null) {
            event.put("others", otherAfter - otherBefore);
        }
        Lines.print(event);
    }
}
