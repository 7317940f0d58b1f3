/** Producers that answer the requests that members get. */
package interop;

import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

final class Repliers {
    private static final byte[] PREFIX = "reply to ".getBytes(StandardCharsets.UTF_8);
    private final Map<String, DefaultMQProducer> producers = new HashMap<>();

    void start(String member, JSONObject command) throws MQClientException {
        DefaultMQProducer producer = new DefaultMQProducer("repliers", Accounts.hook(command));
        Periods.suit(producer);
        producer.setNamesrvAddr(command.getString("nameServer"));
        producer.setInstanceName("replier-" + member);
        producer.start();
        producers.put(member, producer);
    }

    /** The reply is the request's body behind a few words; it carries the request's serial. */
    void reply(String member, MessageExt request) {
        DefaultMQProducer producer = producers.get(member);
        if (producer == null) {
            return;
        }
        Map<String, Object> event = Lines.event("replied");
        event.put("member", member);
        event.put("serial", request.getUserProperty("serial"));
        try {
            byte[] body = new byte[PREFIX.length + request.getBody().length];
            System.arraycopy(PREFIX, 0, body, 0, PREFIX.length);
            System.arraycopy(request.getBody(), 0, body, PREFIX.length, request.getBody().length);
            Message reply = MessageUtil.createReplyMessage(request, body);
            reply.putUserProperty("serial", request.getUserProperty("serial"));
            SendResult sent = producer.send(reply, 5000);
            event.put("status", sent.getSendStatus().name());
            event.put("offsetMsgId", sent.getOffsetMsgId());
        } catch (Exception error) {
            event.put("status", error.toString());
        }
        Lines.print(event);
    }

    void stop(String member) {
        DefaultMQProducer producer = producers.remove(member);
        if (producer != null) {
            producer.shutdown();
        }
    }

    void close() {
        producers.values().forEach(DefaultMQProducer::shutdown);
    }
}
