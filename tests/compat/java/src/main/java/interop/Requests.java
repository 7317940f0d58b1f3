/**
 * Sends requests, waits for their replies and tells what came.
 *
 * Of the 5.3.3 client only the asynchronous request with a selector waits for its reply: the other forms are
 * over as soon as the broker has answered the send, whichever broker that is.
 */
package interop;

import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

final class Requests {
    private static final long TIMEOUT_MS = 15_000;

    private Requests() {
    }

    static List<Map<String, Object>> ask(DefaultMQProducer producer, List<Message> messages) throws Exception {
        List<Map<String, Object>> replies = new ArrayList<>();
        for (Message message : messages) {
            replies.add(reply(producer.request(message, TIMEOUT_MS)));
        }
        return replies;
    }

    static List<Map<String, Object>> askAsync(DefaultMQProducer producer, List<Message> messages) throws Exception {
        List<Map<String, Object>> replies =
            Collections.synchronizedList(new ArrayList<>(Collections.nCopies(messages.size(), null)));
        CountDownLatch missing = new CountDownLatch(messages.size());
        for (int i = 0; i < messages.size(); i++) {
            final int index = i;
            MessageQueueSelector first = (queues, message, none) -> queues.get(0);
            producer.request(messages.get(i), first, null, new RequestCallback() {
                @Override
                public void onSuccess(Message message) {
                    replies.set(index, reply(message));
                    missing.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    Map<String, Object> failure = new LinkedHashMap<>();
                    failure.put("error", error.toString());
                    replies.set(index, failure);
                    missing.countDown();
                }
            }, TIMEOUT_MS);
        }
        if (!missing.await(2 * TIMEOUT_MS, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException(missing.getCount() + " callbacks never came");
        }
        return new ArrayList<>(replies);
    }

    private static Map<String, Object> reply(Message message) {
        MessageExt reply = (MessageExt) message;
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("topic", reply.getTopic());
        told.put("body", Base64.getEncoder().encodeToString(reply.getBody()));
        told.put("properties", new HashMap<>(reply.getProperties()));
        told.put("queueId", reply.getQueueId());
        told.put("sysFlag", reply.getSysFlag());
        told.put("bornTimestamp", reply.getBornTimestamp());
        told.put("storeTimestamp", reply.getStoreTimestamp());
        told.put("bornHost", Members.address(reply.getBornHost()));
        told.put("storeHost", Members.address(reply.getStoreHost()));
        return told;
    }
}
