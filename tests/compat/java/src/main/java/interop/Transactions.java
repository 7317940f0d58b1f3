/** Sends transactional messages; each says in its properties what its producer knows of it, and when. */
package interop;

import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

final class Transactions {
    private final Map<String, TransactionMQProducer> producers = new HashMap<>();

    /** The property `local` is the outcome of the send; the one named `reads`, those of the checks, in turn. */
    void transact(JSONObject command) throws Exception {
        String group = command.getString("group");
        TransactionMQProducer producer = producers.get(group);
        if (producer == null) {
            producer = new TransactionMQProducer(group, Accounts.hook(command));
            Periods.suit(producer);
            producer.setNamesrvAddr(command.getString("nameServer"));
            producer.setInstanceName(group);
            producer.setSendMsgTimeout(10_000);
            producer.setTransactionListener(new Outcomes(command.getString("reads")));
            producer.start();
            producers.put(group, producer);
            // a producer is known to the brokers of the topics that it has sent to
            producer.fetchPublishMessageQueues(command.getString("topic"));
            Object factory = producer.getDefaultMQProducerImpl().getmQClientFactory();
            // what it returns differs between the two generations
            factory.getClass().getMethod("sendHeartbeatToAllBrokerWithLock").invoke(factory);
        }
        List<Map<String, Object>> results = new ArrayList<>();
        for (Message message : Senders.messages(command)) {
            TransactionSendResult sent = producer.sendMessageInTransaction(message, null);
            Map<String, Object> result = new HashMap<>();
            result.put("status", sent.getSendStatus().name());
            result.put("outcome", sent.getLocalTransactionState().name());
            results.add(result);
        }
        Map<String, Object> event = Lines.event("transacted");
        event.put("id", command.get("id"));
        event.put("results", results);
        Lines.print(event);
    }

    void close() {
        producers.values().forEach(TransactionMQProducer::shutdown);
    }

    private static final class Outcomes implements TransactionListener {
        private final String reads;
        private final Map<String, AtomicInteger> checks = new ConcurrentHashMap<>();

        Outcomes(String reads) {
            this.reads = reads;
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return state(message.getUserProperty("local"));
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String serial = message.getUserProperty("serial");
            int number = checks.computeIfAbsent(serial, any -> new AtomicInteger()).getAndIncrement();
            String[] known = message.getUserProperty(reads).split(",");
            String outcome = known[Math.min(number, known.length - 1)];
            Map<String, Object> event = Lines.event("checked");
            event.put("member", reads);
            event.put("serial", serial);
            event.put("outcome", outcome);
            event.put("times", message.getUserProperty("TRANSACTION_CHECK_TIMES"));
            event.put("topic", message.getTopic());
            event.put("transactionId", message.getTransactionId());
            Lines.print(event);
            return state(outcome);
        }

        private static LocalTransactionState state(String outcome) {
            switch (outcome) {
                case "commit":
                    return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback":
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                default:
                    return LocalTransactionState.UNKNOW;
            }
        }
    }
}
