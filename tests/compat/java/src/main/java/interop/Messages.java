/** Makes the messages of a load, and knows when one that comes back was made. */
package interop;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

final class Messages {
    private static final int STAMP_BYTES = 8;
    private static final long[] LEVEL_NS = {0, 1_000_000_000L};   // of the delay levels that loads use

    private final String topic;
    private final byte[] body;
    private final int topics;
    private final boolean hasKeys;
    private final String[] tags;
    private final int delayLevel;
    private final AtomicInteger made = new AtomicInteger();

    Messages(String topic, int bodyBytes, Load.Numbers numbers, String tags) {
        this.topic = topic;
        this.body = new byte[bodyBytes];
        Arrays.fill(body, (byte) 'x');
        this.topics = (int) numbers.get("topics", 0);
        this.hasKeys = numbers.get("keys", 0) > 0;
        this.tags = tags.isEmpty() ? new String[0] : tags.split(",");
        this.delayLevel = (int) numbers.get("delayLevel", 0);
    }

    /** The next one; its body begins with the moment of its making, and its topic is one of many in turn. */
    Message next() {
        int number = made.getAndIncrement() & Integer.MAX_VALUE;
        byte[] own = body.clone();
        if (own.length >= STAMP_BYTES) {
            ByteBuffer.wrap(own).putLong(System.nanoTime());
        }
        Message message = new Message(topics == 0 ? topic : topic + "-" + number % topics, own);
        if (hasKeys) {
            message.setKeys("order-" + number);
        }
        if (tags.length > 0) {
            message.setTags(tags[number % tags.length]);
        }
        if (delayLevel > 0) {
            message.setDelayTimeLevel(delayLevel);
        }
        return message;
    }

    /** Counts what a listener got; a message is late from the moment at which it was due. */
    void arrived(List<MessageExt> got, Window window) {
        long now = System.nanoTime();
        for (MessageExt message : got) {
            long stamp = ByteBuffer.wrap(message.getBody()).getLong();
            window.succeed(Math.max(now - stamp - LEVEL_NS[delayLevel], 0));
        }
    }
}
