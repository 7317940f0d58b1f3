/** A producer and a consumer with an account: name server, access key, secret, topic, group; says how it went. */
package interop;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;

public final class Guarded {
    private static final int MESSAGES = 3;

    private Guarded() {
    }

    public static void main(String[] arguments) throws Exception {
        String namesrv = arguments[0];
        String topic = arguments[3];
        String group = arguments[4];
        RPCHook hook = new AclClientRPCHook(new SessionCredentials(arguments[1], arguments[2]));
        DefaultMQProducer producer = new DefaultMQProducer("guarded", hook);
        producer.setNamesrvAddr(namesrv);
        producer.setVipChannelEnabled(false);
        producer.start();
        try {
            System.out.println("sent " + producer.send(message(topic, "one")).getSendStatus());
            System.out.println("batch "
                + producer.send(Arrays.asList(message(topic, "two"), message(topic, "three"))).getSendStatus());
        } catch (Exception error) {
            System.out.println("refused " + cause(error));
        }
        producer.shutdown();

        CountDownLatch left = new CountDownLatch(MESSAGES);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(namesrv);
        consumer.setVipChannelEnabled(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> left.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean all = left.await(Integer.parseInt(arguments[5]), TimeUnit.SECONDS);
        System.out.println("consumed " + (all ? "all" : MESSAGES - left.getCount()));
        consumer.shutdown();
        System.exit(0);
    }

    private static Message message(String topic, String body) {
        return new Message(topic, body.getBytes(StandardCharsets.UTF_8));
    }

    private static String cause(Throwable error) {
        Throwable last = error;
        while (last.getCause() != null && !(last instanceof MQBrokerException)) {
            last = last.getCause();
        }
        return last.getMessage();
    }
}
