/** The load generator of the benchmark: one load against one broker, by the official client as it is. */
package interop;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.SerializeType;

public final class Load {
    private static final String PRODUCERS = "bench-producer";
    private static final int ROUTES_ASKED_MS = 600_000;   // of all topics, one after the other

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
            for (boolean measured : new boolean[] {false, true}) {   // the first one warms up both ends
                ConsumeLoad load = new ConsumeLoad(number("count", 0), measured);
                load.run(consumers(), text("group") + (measured ? "" : "-warm-up"), text("topic"));
            }
            return;
        }
        boolean transacts = text("load").equals("transactions");
        DefaultMQProducer producer =
            transacts ? TransactionLoad.producer(PRODUCERS, hook()) : new DefaultMQProducer(PRODUCERS, hook());
        producer.setNamesrvAddr(text("nameServer"));
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setPollNameServerInterval(ROUTES_ASKED_MS);
        producer.start();
        switch (text("load")) {
            case "fill":
                new SendLoad(producer, messages(), new Window(), 0).fill(number("count", 0));
                break;
            default:
                measure(producer);
        }
        producer.shutdown();
    }

    /** Sends, and whoever consumes at the same time, until the measured time is over. */
    private void measure(DefaultMQProducer producer) throws Exception {
        Window sent = new Window();
        Window received = new Window();
        Window cold = new Window();
        List<DefaultMQPushConsumer> eaters = new ArrayList<>();
        Messages messages = messages();
        if (options.containsKey("group")) {
            eaters.add(consumers().start(text("group"), text("topic"), got -> messages.arrived(got, received)));
        }
        if (options.containsKey("coldGroup")) {
            eaters.add(consumers().start(
                text("coldGroup"), text("coldTopic"), got -> got.forEach(message -> cold.succeed(0))));
        }
        SendLoad load = new SendLoad(producer, messages, sent, number("most", Long.MAX_VALUE));
        load.sendFirst();
        List<Thread> threads = load.start(text("load"), (int) number("threads", 1), this::number);
        // The first message to a topic asks for its route; so many as "first" says warm up the client's code.
        sent.await(Math.max(number("topics", 0), number("first", 0)));
        // What is counted is what is told of: sends, what a listener gets, what a second group reads.
        boolean atListener = text("counts", "sends").equals("listener");
        Window timed = atListener ? received : sent;
        Window counted = options.containsKey("coldGroup") ? cold : timed;
        Window other = eaters.isEmpty() ? null : counted == received ? sent : received;
        Window.measure(number("warmUpMs", 0), number("measureMs", 0), sent, counted, timed, other);
        load.end();
        for (Thread thread : threads) {
            thread.join();
        }
        eaters.forEach(DefaultMQPushConsumer::shutdown);
    }

    private Messages messages() {
        return new Messages(text("topic"), (int) number("bodyBytes", 0), this::number, text("tags", ""));
    }

    private Consumers consumers() {
        return new Consumers(text("nameServer"), text("expression", "*"), number("orderly", 0) > 0, hook());
    }

    private RPCHook hook() {
        return Accounts.hook(options.get("accessKey"), options.get("secretKey"));
    }

    private String text(String name) {
        String value = options.get(name);
        if (value == null) {
            throw new IllegalArgumentException("missing: " + name + "=");
        }
        return value;
    }

    private String text(String name, String otherwise) {
        return options.getOrDefault(name, otherwise);
    }

    private long number(String name, long otherwise) {
        String value = options.get(name);
        return value == null ? otherwise : Long.parseLong(value);
    }

    /** The number of that name among the options, or another one where there is none. */
    interface Numbers {
        long get(String name, long otherwise);
    }
}
