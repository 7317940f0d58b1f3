/** A producer whose transactions are all committed at once. */
package interop;

import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

final class TransactionLoad implements TransactionListener {
    static TransactionMQProducer producer(String group, RPCHook signs) {
        TransactionMQProducer producer = new TransactionMQProducer(group, signs);
        producer.setTransactionListener(new TransactionLoad());
        return producer;
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
        return LocalTransactionState.COMMIT_MESSAGE;
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        return LocalTransactionState.COMMIT_MESSAGE;
    }
}
