/** Sends messages in the four ways of the official producer and tells what each send returned. */
package interop;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.topic.TopicValidator;

final class Senders {
    private static final long ASYNC_DEADLINE_S = 30;

    private final Map<String, DefaultMQProducer> producers = new HashMap<>();
    private final Map<String, WireWatch> watches = new HashMap<>();

    void send(JSONObject command) throws Exception {
        DefaultMQProducer producer = producer(command);
        WireWatch watch = watches.get(command.getString("group"));
        watch.take();
        List<Message> messages = messages(command);
        long began = System.currentTimeMillis();
        List<Map<String, Object>> results = send(producer, command.getString("way"), messages);
        if (command.getString("way").equals("oneway")) {
            watch.await(messages.size());
        }
        Map<String, Object> event = Lines.event("sent");
        event.put("id", command.get("id"));
        event.put("began", began);
        event.put("ended", System.currentTimeMillis());
        event.put("results", results);
        event.put("wire", watch.take());
        Lines.print(event);
    }

    void create(JSONObject command) throws Exception {
        producer(command).createTopic(TopicValidator.AUTO_CREATE_TOPIC_KEY_TOPIC, command.getString("topic"),
            command.getIntValue("queues"));
        Map<String, Object> event = Lines.event("created");
        event.put("id", command.get("id"));
        Lines.print(event);
    }

    void close() {
        producers.values().forEach(DefaultMQProducer::shutdown);
    }

    private DefaultMQProducer producer(JSONObject command) throws MQClientException {
        String group = command.getString("group");
        DefaultMQProducer producer = producers.get(group);
        if (producer == null) {
            WireWatch watch = new WireWatch(Accounts.hook(command));
            producer = new DefaultMQProducer(
                command.getString("namespace"), group, watch, command.getBooleanValue("trace"), null);
            Periods.suit(producer);
            producer.setNamesrvAddr(command.getString("nameServer"));
            producer.setInstanceName(group);
            producer.setSendMsgTimeout(10_000);
            producer.start();
            producers.put(group, producer);
            watches.put(group, watch);
        }
        return producer;
    }

    private static List<Map<String, Object>> send(
        DefaultMQProducer producer, String way, List<Message> messages) throws Exception {
        switch (way) {
            case "batch":
                return new ArrayList<>(Collections.singletonList(result(producer.send(messages))));
            case "async":
                return sendAsync(producer, messages);
            case "request":
                return Requests.ask(producer, messages);
            case "request-async":
                return Requests.askAsync(producer, messages);
            case "oneway":
                for (Message message : messages) {
                    producer.sendOneway(message);
                }
                return Collections.emptyList();
            case "sync":
                List<Map<String, Object>> results = new ArrayList<>();
                for (Message message : messages) {
                    results.add(result(producer.send(message)));
                }
                return results;
            default:
                throw new IllegalArgumentException("no such way to send: " + way);
        }
    }

    private static List<Map<String, Object>> sendAsync(
        DefaultMQProducer producer, List<Message> messages) throws Exception {
        List<Map<String, Object>> results = new ArrayList<>(Collections.nCopies(messages.size(), null));
        CountDownLatch answers = new CountDownLatch(messages.size());
        for (int i = 0; i < messages.size(); i++) {
            final int index = i;
            producer.send(messages.get(i), new SendCallback() {
                @Override
                public void onSuccess(SendResult sendResult) {
                    put(result(sendResult));
                }

                @Override
                public void onException(Throwable error) {
                    Map<String, Object> failure = new LinkedHashMap<>();
                    failure.put("status", error.toString());
                    put(failure);
                }

                private void put(Map<String, Object> result) {
                    synchronized (results) {
                        results.set(index, result);
                    }
                    answers.countDown();
                }
            });
        }
        if (!answers.await(ASYNC_DEADLINE_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(answers.getCount() + " callbacks never came");
        }
        synchronized (results) {
            return new ArrayList<>(results);
        }
    }

    private static Map<String, Object> result(SendResult sent) {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("status", sent.getSendStatus().name());
        result.put("msgIds", Arrays.asList(sent.getMsgId().split(",")));
        result.put("offsetMsgIds", Arrays.asList(sent.getOffsetMsgId().split(",")));
        result.put("topic", sent.getMessageQueue().getTopic());
        result.put("brokerName", sent.getMessageQueue().getBrokerName());
        result.put("queueId", sent.getMessageQueue().getQueueId());
        result.put("queueOffset", sent.getQueueOffset());
        result.put("regionId", sent.getRegionId());
        return result;
    }

    static List<Message> messages(JSONObject command) {
        List<Message> messages = new ArrayList<>();
        JSONArray given = command.getJSONArray("messages");
        for (int i = 0; i < given.size(); i++) {
            messages.add(message(command.getString("topic"), given.getJSONObject(i)));
        }
        return messages;
    }

    private static Message message(String topic, JSONObject given) {
        Message message = new Message(topic, Base64.getDecoder().decode(given.getString("body")));
        if (given.getString("tags") != null) {
            message.setTags(given.getString("tags"));
        }
        if (given.getString("keys") != null) {
            message.setKeys(given.getString("keys"));
        }
        given.getJSONObject("properties").forEach(
            (name, value) -> message.putUserProperty(name, value.toString()));
        message.setFlag(given.getIntValue("flag"));
        if (given.getIntValue("delayLevel") != 0) {
            message.setDelayTimeLevel(given.getIntValue("delayLevel"));
        }
        message.setWaitStoreMsgOK(given.getBooleanValue("wait"));
        return message;
    }
}
