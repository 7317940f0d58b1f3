/** A lite pull consumer that prints what it gets and ends: name server, group, topic, expression, count. */
package interop;

import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

public final class LitePull {
    private static final long DEADLINE_MS = 60_000;

    private LitePull() {
    }

    public static void main(String[] arguments) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(arguments[1]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[2], arguments[3]);
        consumer.start();
        int left = Integer.parseInt(arguments[4]);
        long end = System.currentTimeMillis() + DEADLINE_MS;
        while (left > 0 && System.currentTimeMillis() < end) {
            List<MessageExt> messages = consumer.poll(500);
            for (MessageExt message : messages) {
                System.out.println(message.getQueueId() + " " + message.getQueueOffset() + " "
                    + new String(message.getBody(), StandardCharsets.UTF_8));
            }
            left -= messages.size();
        }
        consumer.commitSync();
        consumer.shutdown();
        System.exit(left == 0 ? 0 : 1);
    }
}
