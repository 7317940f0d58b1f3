/** Members of consumer groups: each prints the queues it is given and every message it gets. */
package interop;

import com.alibaba.fastjson.JSONObject;
import java.lang.reflect.Method;
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

final class Members {
    private final Map<String, DefaultMQPushConsumer> members = new HashMap<>();
    private final Repliers repliers = new Repliers();

    void join(JSONObject command) throws Exception {
        String name = command.getString("member");
        String topic = command.getString("topic");
        DefaultMQPushConsumer member = new DefaultMQPushConsumer(
            command.getString("namespace"), command.getString("group"), Accounts.hook(command),
            new Told(name, topic, command.getString("strategy")),
            command.getBooleanValue("trace"), null);
        Periods.suit(member);
        member.setNamesrvAddr(command.getString("nameServer"));
        member.setInstanceName(name);
        member.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        member.setConsumeThreadMin(1);
        member.setConsumeThreadMax(1);   // one thread: what is printed is the order of each queue
        if (command.containsKey("maxReconsumeTimes")) {
            member.setMaxReconsumeTimes(command.getIntValue("maxReconsumeTimes"));
        }
        if (command.containsKey("batch")) {
            member.setConsumeMessageBatchMaxSize(command.getIntValue("batch"));
        }
        if (command.getBooleanValue("broadcast")) {
            broadcast(member);
        }
        if (command.getBooleanValue("trace")) {
            trace(member);
        }
        if (command.containsKey("popInvisibleTime")) {   // ms; of 5.x clients only
            set(member, "setClientRebalance", false);
            set(member, "setPopInvisibleTime", command.getLongValue("popInvisibleTime"));
            member.setConsumeThreadMin(4);
            member.setConsumeThreadMax(4);
        }
        String expression = command.getString("expression");
        member.subscribe(topic, "SQL92".equals(command.getString("kind"))
            ? MessageSelector.bySql(expression) : MessageSelector.byTag(expression));
        if (command.getBooleanValue("replies")) {
            repliers.start(name, command);
        }
        if (command.getBooleanValue("orderly")) {
            member.registerMessageListener(orderly(name, command));
        } else {
            member.registerMessageListener(concurrently(name, command));
        }
        member.start();
        members.put(name, member);
        Map<String, Object> event = Lines.event("joined");
        event.put("id", command.get("id"));
        Lines.print(event);
    }

    void leave(JSONObject command) {
        members.remove(command.getString("member")).shutdown();
        repliers.stop(command.getString("member"));
        Map<String, Object> event = Lines.event("left");
        event.put("id", command.get("id"));
        Lines.print(event);
    }

    void close() {
        members.values().forEach(DefaultMQPushConsumer::shutdown);
        repliers.close();
    }

    /** A listener that may fail: always, behind the first few of a batch, or straight to the dead letters. */
    private MessageListenerConcurrently concurrently(String name, JSONObject command) {
        boolean fails = command.getBooleanValue("fails");
        long pause = command.getLongValue("pause");
        Integer succeeds = command.getInteger("succeeds");   // so many of each batch
        Integer nextLevel = command.getInteger("nextLevel");
        return (messages, context) -> {
            for (MessageExt message : messages) {
                print(name, message);
                repliers.reply(name, message);
            }
            sleep(pause);
            if (hasToFail(messages)) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            if (nextLevel != null) {
                context.setDelayLevelWhenNextConsume(nextLevel);
            }
            if (succeeds != null && messages.get(0).getReconsumeTimes() == 0) {
                context.setAckIndex(succeeds - 1);
            }
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    /** Whether a message is to fail as often as its property says. */
    private static boolean hasToFail(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            String times = message.getProperty("failures");
            if (times != null && message.getReconsumeTimes() < Integer.parseInt(times)) {
                return true;
            }
        }
        return false;
    }

    private static void sleep(long pause) {
        try {
            Thread.sleep(pause);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    /** A listener that takes its time, so that a queue changes hands while there is work. */
    private MessageListenerOrderly orderly(String name, JSONObject command) {
        boolean fails = command.getBooleanValue("fails");
        long pause = command.getLongValue("pause");
        return (messages, context) -> {
            for (MessageExt message : messages) {
                print(name, message);
            }
            sleep(pause);
            context.setSuspendCurrentQueueTimeMillis(100);
            return fails ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
        };
    }

    /** Of 5.x clients the constructor does not do it. */
    private static void trace(DefaultMQPushConsumer member) throws ReflectiveOperationException {
        set(member, "setEnableTrace", true);
    }

    /** Calls a method that only 5.x clients have. */
    private static void set(DefaultMQPushConsumer member, String name, Object value)
            throws ReflectiveOperationException {
        for (Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals(name)) {
                method.invoke(member, value);
            }
        }
    }

    /** MessageModel lies in another package since 5.0. */
    private static void broadcast(DefaultMQPushConsumer member) throws ReflectiveOperationException {
        for (Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                for (Object model : method.getParameterTypes()[0].getEnumConstants()) {
                    if (model.toString().equals("BROADCASTING")) {
                        method.invoke(member, model);
                    }
                }
            }
        }
    }

    private static void print(String member, MessageExt message) {
        Map<String, Object> event = Lines.event("received");
        event.put("member", member);
        event.put("at", System.currentTimeMillis());
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
        event.put("offsetMsgId", message instanceof MessageClientExt
            ? ((MessageClientExt) message).getOffsetMsgId() : message.getMsgId());   // consumed directly
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

    static String address(SocketAddress host) {
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
            String found = queues.get(0).getTopic();
            if (found.endsWith(topic) && !found.startsWith("%RETRY%")) {   // whatever its namespace
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
