/** The send loads of the benchmark: threads that wait for each answer, and threads that take callbacks. */
package interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.exception.RemotingException;

final class SendLoad {
    private static final int FILL_BATCH = 64;
    private static final int FILL_THREADS = 4;
    private static final long FIRST_MS = 60_000;
    private static final long FIRST_NS = FIRST_MS * 1_000_000;

    private final DefaultMQProducer producer;
    private final Messages messages;
    private final Window window;
    private final AtomicLong left;
    private volatile boolean over;

    /** It ends after `most` messages, whatever the time: large ones would fill the disk. */
    SendLoad(DefaultMQProducer producer, Messages messages, Window window, long most) {
        this.producer = producer;
        this.messages = messages;
        this.window = window;
        this.left = new AtomicLong(most);
    }

    void end() {
        over = true;
    }

    /**
     * Sends one message, which is not counted. It asks for the route, and of a client that signs it loads the
     * cryptography: on a busy machine sends that waited for that would be over their timeout before they leave.
     */
    void sendFirst() throws Exception {
        long until = System.nanoTime() + FIRST_NS;
        for (boolean stored = false; !stored; ) {
            try {
                producer.send(messages.next(), FIRST_MS);
                stored = true;
            } catch (MQClientException | RemotingException error) {
                if (System.nanoTime() > until) {
                    throw error;
                }
            }
        }
    }

    List<Thread> start(String load, int threads, Load.Numbers numbers) {
        switch (load) {
            case "send":
                return repeat(threads, numbers.get("rate", 0), () -> producer.send(messages.next()));
            case "batches":
                return batches(threads, (int) numbers.get("batch", 1));
            case "transactions":
                return repeat(threads, 0, () -> producer.sendMessageInTransaction(messages.next(), null));
            case "callbacks":
                return callbacks(threads, new Semaphore((int) numbers.get("inFlight", 1)));
            default:
                throw new IllegalArgumentException("no such load: " + load);
        }
    }

    /** Each thread has one message on its way at a time; together they keep to `rate`, if it is not 0. */
    private List<Thread> repeat(int threads, long rate, Sending sending) {
        long pauseNs = rate == 0 ? 0 : 1_000_000_000L * threads / rate;
        return run(threads, () -> {
            long due = System.nanoTime();
            while (more(1)) {
                for (due += pauseNs; pauseNs > 0 && System.nanoTime() < due; ) {
                    LockSupport.parkNanos(due - System.nanoTime());
                }
                count(sending, 1);
            }
        });
    }

    private List<Thread> batches(int threads, int size) {
        return run(threads, () -> {
            while (more(size)) {
                List<Message> batch = batch(size);
                count(() -> producer.send(batch), size);
            }
        });
    }

    /** The threads together have at most so many messages on their way as `free` has permits. */
    private List<Thread> callbacks(int threads, Semaphore free) {
        return run(threads, () -> {
            while (more(1)) {
                free.acquireUninterruptibly();
                try {
                    producer.send(messages.next(), callback(System.nanoTime(), free));
                } catch (Exception error) {
                    free.release();
                    window.fail(error);
                }
            }
        });
    }

    /** Stores `count` messages as fast as it goes, in batches; returns when all are there. */
    void fill(long count) throws InterruptedException {
        AtomicLong rest = new AtomicLong(count);
        for (Thread thread : run(FILL_THREADS, () -> {
            for (long now = rest.getAndAdd(-FILL_BATCH); now > 0; now = rest.getAndAdd(-FILL_BATCH)) {
                try {
                    producer.send(batch((int) Math.min(FILL_BATCH, now)));
                } catch (Exception error) {
                    throw new IllegalStateException("the backlog could not be stored", error);
                }
            }
        })) {
            thread.join();
        }
    }

    private List<Message> batch(int size) {
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < size; i++) {
            batch.add(messages.next());
        }
        return batch;
    }

    private boolean more(int count) {
        if (left.addAndGet(-count) < 0) {
            window.end();
            return false;
        }
        return !over;
    }

    private static List<Thread> run(int threads, Runnable work) {
        List<Thread> started = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(work, "load-" + i);
            thread.start();
            started.add(thread);
        }
        return started;
    }

    private SendCallback callback(long began, Semaphore free) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult sent) {
                free.release();
                count(sent, began, 1);
            }

            @Override
            public void onException(Throwable error) {
                free.release();
                window.fail(error);
            }
        };
    }

    private void count(Sending sending, int messages) {
        long began = System.nanoTime();
        try {
            count(sending.send(), began, messages);
        } catch (Exception error) {
            window.fail(error);
        }
    }

    private void count(SendResult sent, long began, int messages) {
        if (sent.getSendStatus() == SendStatus.SEND_OK) {
            window.succeed(System.nanoTime() - began, messages);
        } else {
            window.fail(sent.getSendStatus());
        }
    }

    private interface Sending {
        SendResult send() throws Exception;
    }
}
