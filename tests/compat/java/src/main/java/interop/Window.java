/** The measured stretch of a load: warm up, tell that it begins, count, tell what was counted. */
package interop;

import java.util.Map;
import java.util.concurrent.atomic.LongAdder;

final class Window {
    private final LongAdder done = new LongAdder();
    private final LongAdder failed = new LongAdder();
    private final Latencies latencies = new Latencies();
    private volatile boolean measuring;
    private volatile boolean over;

    boolean isOver() {
        return over;
    }

    /** One message made it; it took `ns`. */
    void succeed(long ns) {
        done.increment();
        if (measuring) {
            latencies.add(ns);
        }
    }

    void fail() {
        failed.increment();
    }

    /** Lets the load run for the two times and prints what the second one saw. */
    void run(long warmUpMs, long measureMs) throws InterruptedException {
        Thread.sleep(warmUpMs);
        long doneBefore = done.sum();
        long failedBefore = failed.sum();
        measuring = true;
        long began = System.nanoTime();
        Lines.print(Lines.event("begins"));
        Thread.sleep(measureMs);
        long doneAfter = done.sum();
        long failedAfter = failed.sum();
        long ended = System.nanoTime();
        measuring = false;
        Map<String, Object> event = Lines.event("ends");
        event.put("messages", doneAfter - doneBefore);
        event.put("failures", failedAfter - failedBefore);
        event.put("seconds", (ended - began) / 1e9);
        event.put("p50Ms", latencies.quantileMs(0.50));
        event.put("p99Ms", latencies.quantileMs(0.99));
        event.put("maxMs", latencies.longestMs());
        Lines.print(event);
        over = true;
    }
}
