/** The consume load of the benchmark: a new group eats a backlog, of which the last three quarters count. */
package interop;

import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.common.message.MessageExt;

final class ConsumeLoad {
    private static final long DEADLINE_S = 120;

    private final long count;
    private final boolean measured;
    private final AtomicLong got = new AtomicLong();
    private final CountDownLatch quarter = new CountDownLatch(1);
    private final CountDownLatch all = new CountDownLatch(1);

    ConsumeLoad(long count, boolean measured) {
        this.count = count;
        this.measured = measured;
    }

    /** One group's meal. */
    void run(Consumers consumers, String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = consumers.start(group, topic, this::eat);
        await(quarter);
        long began = System.nanoTime();
        long before = got.get();
        if (measured) {
            Lines.print(Lines.event("begins"));
        }
        await(all);
        if (measured) {
            tell(count - before, System.nanoTime() - began);
        }
        consumer.shutdown();
    }

    private static void tell(long messages, long ns) {
        Map<String, Object> event = Lines.event("ends");
        event.put("messages", messages);
        event.put("failures", 0);
        event.put("seconds", ns / 1e9);
        Lines.print(event);
    }

    private void eat(List<MessageExt> messages) {
        long now = got.addAndGet(messages.size());
        if (now >= count / 4) {
            quarter.countDown();
        }
        if (now >= count) {
            all.countDown();
        }
    }

    private void await(CountDownLatch point) throws InterruptedException {
        if (!point.await(DEADLINE_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(got.get() + " of " + count + " messages came");
        }
    }
}
