/** The load generator of the benchmark: one load against one broker, by the official client as it is. */
package interop;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.topic.TopicValidator;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.SerializeType;

public final class Load {
    private final Map<String, String> options = new HashMap<>();

    private Load(String[] arguments) {
        for (String argument : arguments) {
            String[] pair = argument.split("=", 2);
            options.put(pair[0], pair[1]);
        }
    }

    /** Arguments are `name=value`: load, nameServer, topic, and what the load needs. */
    public static void main(String[] arguments) throws Exception {
        Lines.claimStandardOutput();
        // As the official benchmark does.
        System.setProperty(RemotingCommand.SERIALIZE_TYPE_PROPERTY, SerializeType.ROCKETMQ.name());
        try {
            new Load(arguments).run();
            System.exit(0);   // the client library leaves threads behind
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private void run() throws Exception {
        if (text("load").equals("consume")) {
            String group = text("group");
            new ConsumeLoad(number("count")).run(text("nameServer"), group + "-warm-up", text("topic"), false);
            new ConsumeLoad(number("count")).run(text("nameServer"), group, text("topic"), true);
            return;
        }
        DefaultMQProducer producer = new DefaultMQProducer("bench-producer");
        producer.setNamesrvAddr(text("nameServer"));
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
        send(producer, new SendLoad(producer, text("topic"), (int) number("bodyBytes")));
        producer.shutdown();
    }

    private void send(DefaultMQProducer producer, SendLoad load) throws Exception {
        Window window = new Window();
        List<Thread> threads;
        switch (text("load")) {
            case "create":
                producer.createTopic(
                    TopicValidator.AUTO_CREATE_TOPIC_KEY_TOPIC, text("topic"), (int) number("queues"));
                return;
            case "fill":
                load.fill(number("count"));
                return;
            case "send":
                threads = load.waiting((int) number("threads"), window);
                break;
            case "callbacks":
                threads = load.callbacks((int) number("threads"), (int) number("inFlight"), window);
                break;
            default:
                throw new IllegalArgumentException("no such load: " + text("load"));
        }
        window.run(number("warmUpMs"), number("measureMs"));
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private String text(String name) {
        String value = options.get(name);
        if (value == null) {
            throw new IllegalArgumentException("missing: " + name + "=");
        }
        return value;
    }

    private long number(String name) {
        return Long.parseLong(text(name));
    }
}
