/** Starts push consumers that hand what they get to somebody and are content with it. */
package interop;

import java.util.List;
import java.util.function.Consumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

final class Consumers {
    private final String nameServer;
    private final String expression;
    private final boolean isOrderly;
    private final RPCHook signs;

    Consumers(String nameServer, String expression, boolean isOrderly, RPCHook signs) {
        this.nameServer = nameServer;
        this.expression = expression;
        this.isOrderly = isOrderly;
        this.signs = signs;
    }

    /** A new group that begins with the first message. */
    DefaultMQPushConsumer start(String group, String topic, Consumer<List<MessageExt>> eater)
            throws MQClientException {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, signs, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, expression);
        if (isOrderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                eater.accept(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                eater.accept(messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        return consumer;
    }
}
