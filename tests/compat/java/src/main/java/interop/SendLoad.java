/** The send loads of the benchmark: threads that wait for each answer, and threads that take callbacks. */
package interop;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

final class SendLoad {
    private static final int BATCH = 64;
    private static final int FILL_THREADS = 4;

    private final DefaultMQProducer producer;
    private final String topic;
    private final byte[] body;

    SendLoad(DefaultMQProducer producer, String topic, int bodyBytes) {
        this.producer = producer;
        this.topic = topic;
        this.body = new byte[bodyBytes];
        Arrays.fill(body, (byte) 'x');
    }

    /** Each thread has one message on its way at a time. */
    List<Thread> waiting(int threads, Window window) {
        return start(threads, () -> {
            while (!window.isOver()) {
                long began = System.nanoTime();
                try {
                    count(producer.send(new Message(topic, body)), began, window);
                } catch (Exception error) {
                    window.fail();
                }
            }
        });
    }

    /** The threads together have at most `inFlight` messages on their way. */
    List<Thread> callbacks(int threads, int inFlight, Window window) {
        Semaphore free = new Semaphore(inFlight);
        return start(threads, () -> {
            while (!window.isOver()) {
                free.acquireUninterruptibly();
                long began = System.nanoTime();
                try {
                    producer.send(new Message(topic, body), callback(began, free, window));
                } catch (Exception error) {
                    free.release();
                    window.fail();
                }
            }
        });
    }

    /** Stores `count` messages as fast as it goes, in batches; returns when all are there. */
    void fill(long count) throws InterruptedException {
        AtomicLong left = new AtomicLong(count);
        for (Thread thread : start(FILL_THREADS, () -> {
            for (long rest = left.getAndAdd(-BATCH); rest > 0; rest = left.getAndAdd(-BATCH)) {
                List<Message> batch = new ArrayList<>();
                for (int i = 0; i < Math.min(BATCH, rest); i++) {
                    batch.add(new Message(topic, body));
                }
                try {
                    producer.send(batch);
                } catch (Exception error) {
                    throw new IllegalStateException("the backlog could not be stored", error);
                }
            }
        })) {
            thread.join();
        }
    }

    private static List<Thread> start(int threads, Runnable work) {
        List<Thread> started = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(work, "load-" + i);
            thread.start();
            started.add(thread);
        }
        return started;
    }

    private static SendCallback callback(long began, Semaphore free, Window window) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult sent) {
                free.release();
                count(sent, began, window);
            }

            @Override
            public void onException(Throwable error) {
                free.release();
                window.fail();
            }
        };
    }

    private static void count(SendResult sent, long began, Window window) {
        if (sent.getSendStatus() == SendStatus.SEND_OK) {
            window.succeed(System.nanoTime() - began);
        } else {
            window.fail();
        }
    }
}
