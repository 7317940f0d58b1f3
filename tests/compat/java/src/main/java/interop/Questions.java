/** Requests with a reply, both sides of them: asks and prints the reply, or replies to whatever it consumes. */
package interop;

import com.alibaba.fastjson.JSONObject;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

final class Questions {
    private final Map<String, DefaultMQProducer> producers = new HashMap<>();
    private final Map<String, DefaultMQPushConsumer> repliers = new HashMap<>();

    void ask(JSONObject command) throws Exception {
        Message question = new Message(
            command.getString("topic"), Base64.getDecoder().decode(command.getString("body")));
        Message reply = producer(command).request(question, command.getLongValue("timeout"));
        Map<String, Object> event = Lines.event("replied");
        event.put("id", command.get("id"));
        event.put("body", Base64.getEncoder().encodeToString(reply.getBody()));
        event.put("properties", new HashMap<>(reply.getProperties()));
        Lines.print(event);
    }

    /** Replies to each message with its body and the text `suffix` behind it. */
    void reply(JSONObject command) throws Exception {
        String group = command.getString("group");
        DefaultMQProducer producer = producer(command);
        byte[] suffix = Base64.getDecoder().decode(command.getString("suffix"));
        DefaultMQPushConsumer replier = new DefaultMQPushConsumer(
            group, Accounts.hook(command), new AllocateMessageQueueAveragely());
        Periods.suit(replier);
        replier.setNamesrvAddr(command.getString("nameServer"));
        replier.setInstanceName("replier-" + group);
        replier.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        replier.subscribe(command.getString("topic"), "*");
        replier.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                for (MessageExt message : messages) {
                    byte[] body = new byte[message.getBody().length + suffix.length];
                    System.arraycopy(message.getBody(), 0, body, 0, message.getBody().length);
                    System.arraycopy(suffix, 0, body, message.getBody().length, suffix.length);
                    producer.send(MessageUtil.createReplyMessage(message, body), 3000);
                }
            } catch (Exception error) {
                error.printStackTrace();
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        replier.start();
        repliers.put(group, replier);
        Map<String, Object> event = Lines.event("replies");
        event.put("id", command.get("id"));
        Lines.print(event);
    }

    void close() {
        repliers.values().forEach(DefaultMQPushConsumer::shutdown);
        producers.values().forEach(DefaultMQProducer::shutdown);
    }

    private DefaultMQProducer producer(JSONObject command) throws MQClientException {
        String group = "questions-" + command.getString("group");
        DefaultMQProducer producer = producers.get(group);
        if (producer == null) {
            producer = new DefaultMQProducer(group, Accounts.hook(command));
            Periods.suit(producer);
            producer.setNamesrvAddr(command.getString("nameServer"));
            producer.setInstanceName(group);
            producer.start();
            producers.put(group, producer);
        }
        return producer;
    }
}
