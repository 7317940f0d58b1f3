/** Counts latencies in buckets that are about one per cent wide, from a nanosecond to hours. */
package interop;

import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;

final class Latencies {
    private static final int FINE_BITS = 6;   // 64 buckets for each power of two
    private static final int FINE = 1 << FINE_BITS;

    private final AtomicLongArray counts = new AtomicLongArray(64 * FINE);
    private final AtomicLong longestNs = new AtomicLong();

    void add(long ns) {
        counts.incrementAndGet(bucket(ns));
        longestNs.accumulateAndGet(ns, Math::max);
    }

    double longestMs() {
        return longestNs.get() / 1e6;
    }

    /** The latency that `share` of all did not exceed, in milliseconds. */
    double quantileMs(double share) {
        long all = 0;
        for (int i = 0; i < counts.length(); i++) {
            all += counts.get(i);
        }
        long below = 0;
        for (int i = 0; i < counts.length(); i++) {
            below += counts.get(i);
            if (below > 0 && below >= share * all) {
                return upperBoundNs(i) / 1e6;
            }
        }
        return 0;
    }

    private static int bucket(long ns) {
        if (ns < FINE) {
            return (int) ns;
        }
        int power = 63 - Long.numberOfLeadingZeros(ns);
        return (power - FINE_BITS + 1) * FINE + (int) (ns >>> power - FINE_BITS) - FINE;
    }

    private static long upperBoundNs(int bucket) {
        if (bucket < FINE) {
            return bucket;
        }
        int power = bucket / FINE + FINE_BITS - 1;
        return (long) (bucket % FINE + FINE + 1) << power - FINE_BITS;
    }
}
