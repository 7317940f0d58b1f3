/** Members of consumer groups: each prints the queues it is given and every message it gets. */
package interop;

import com.alibaba.fastjson.JSONObject;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

final class Members {
    private final Map<String, DefaultMQPushConsumer> members = new HashMap<>();

    void join(JSONObject command) throws Exception {
        String name = command.getString("member");
        String topic = command.getString("topic");
        DefaultMQPushConsumer member = new DefaultMQPushConsumer(
            command.getString("group"), null, new Told(name, topic, command.getString("strategy")));
        member.setNamesrvAddr(command.getString("nameServer"));
        member.setInstanceName(name);
        member.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        member.setConsumeThreadMin(1);
        member.setConsumeThreadMax(1);   // one thread: what is printed is the order of each queue
        if (command.getBooleanValue("broadcast")) {
            member.setMessageModel(MessageModel.BROADCASTING);
        }
        if (command.containsKey("maxReconsumeTimes")) {
            member.setMaxReconsumeTimes(command.getIntValue("maxReconsumeTimes"));
        }
        boolean fails = command.getBooleanValue("fails");
        String expression = command.getString("expression");
        member.subscribe(topic, "SQL92".equals(command.getString("kind"))
            ? MessageSelector.bySql(expression) : MessageSelector.byTag(expression));
        if (command.getBooleanValue("orderly")) {
            member.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                for (MessageExt message : messages) {
                    print(name, message);
                }
                return fails ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            member.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    print(name, message);
                }
                return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        member.start();
        members.put(name, member);
        Map<String, Object> event = Lines.event("joined");
        event.put("id", command.get("id"));
        Lines.print(event);
    }

    void leave(JSONObject command) {
        members.remove(command.getString("member")).shutdown();
        Map<String, Object> event = Lines.event("left");
        event.put("id", command.get("id"));
        Lines.print(event);
    }

    void close() {
        members.values().forEach(DefaultMQPushConsumer::shutdown);
    }

    private static void print(String member, MessageExt message) {
        Map<String, Object> event = Lines.event("received");
        event.put("member", member);
        event.put("topic", message.getTopic());
        event.put("body", Base64.getEncoder().encodeToString(message.getBody()));
        event.put("tags", message.getTags());
        event.put("keys", message.getKeys());
        event.put("properties", new HashMap<>(message.getProperties()));
        event.put("flag", message.getFlag());
        event.put("sysFlag", message.getSysFlag());
        event.put("brokerName", message.getBrokerName());
        event.put("queueId", message.getQueueId());
        event.put("queueOffset", message.getQueueOffset());
        event.put("msgId", message.getMsgId());
        event.put("offsetMsgId", ((MessageClientExt) message).getOffsetMsgId());
        event.put("commitLogOffset", message.getCommitLogOffset());
        event.put("storeSize", message.getStoreSize());
        event.put("bodyCrc", message.getBodyCRC());
        event.put("bornTimestamp", message.getBornTimestamp());
        event.put("bornHost", address(message.getBornHost()));
        event.put("storeTimestamp", message.getStoreTimestamp());
        event.put("storeHost", address(message.getStoreHost()));
        event.put("reconsumeTimes", message.getReconsumeTimes());
        event.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        Lines.print(event);
    }

    private static String address(SocketAddress host) {
        InetSocketAddress address = (InetSocketAddress) host;
        return address.getAddress().getHostAddress() + ":" + address.getPort();
    }

    /** One of the client's strategies, which also prints what it decided. */
    private static final class Told implements AllocateMessageQueueStrategy {
        private final AllocateMessageQueueStrategy strategy;
        private final String member;
        private final String topic;

        Told(String member, String topic, String strategy) {
            this.member = member;
            this.topic = topic;
            this.strategy = Allocations.named(strategy);
        }

        @Override
        public List<MessageQueue> allocate(
            String group, String client, List<MessageQueue> queues, List<String> clients) {
            List<MessageQueue> given = strategy.allocate(group, client, queues, clients);
            if (queues.get(0).getTopic().equals(topic)) {   // not the retry topic of the group
                Map<String, Object> event = Lines.event("assigned");
                event.put("member", member);
                event.put("members", clients.size());
                event.put("queues", given.stream().map(MessageQueue::getQueueId).collect(Collectors.toList()));
                Lines.print(event);
            }
            return given;
        }

        @Override
        public String getName() {
            return strategy.getName();
        }
    }
}
