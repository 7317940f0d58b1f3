/** Notes what the client really puts into its send headers, as the born timestamp is known nowhere else; then it is signed. */
package interop;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

final class WireWatch implements RPCHook {
    private static final long DEADLINE_MS = 5000;
    private final List<Map<String, Object>> seen = new ArrayList<>();
    private final RPCHook signs;

    /** `signs` may be null. */
    WireWatch(RPCHook signs) {
        this.signs = signs;
    }

    @Override
    public void doBeforeRequest(String remoteAddress, RemotingCommand request) {
        CommandCustomHeader header = request.readCustomHeader();
        if (header != null && header.getClass().getSimpleName().equals("SendMessageRequestHeaderV2")) {   // its package differs
            note(request, header);
        }
        if (signs != null) {
            signs.doBeforeRequest(remoteAddress, request);
        }
    }

    @Override
    public void doAfterResponse(String remoteAddress, RemotingCommand request, RemotingCommand response) {
    }

    /** Waits until so much is noted: a 5.x client passes a one-way send to another thread. */
    synchronized void await(int count) throws InterruptedException {
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (seen.size() < count && System.currentTimeMillis() < deadline) {
            wait(DEADLINE_MS);
        }
    }

    /** Everything noted since the last call. */
    synchronized List<Map<String, Object>> take() {
        List<Map<String, Object>> taken = new ArrayList<>(seen);
        seen.clear();
        return taken;
    }

    private synchronized void note(RemotingCommand request, CommandCustomHeader header) {
        for (String uniqueKey : uniqueKeys(request, header)) {
            Map<String, Object> frame = new LinkedHashMap<>();
            frame.put("uniqueKey", uniqueKey);
            frame.put("headerKey", headerKey(header));   // a batch has one since 5.0
            frame.put("code", request.getCode());
            frame.put("queueId", get(header, "getE"));
            frame.put("sysFlag", get(header, "getF"));
            frame.put("bornTimestamp", get(header, "getG"));
            seen.add(frame);
        }
        notifyAll();
    }

    private static List<String> uniqueKeys(RemotingCommand request, CommandCustomHeader header) {
        List<String> keys = new ArrayList<>();
        if ((boolean) get(header, "isM")) {
            for (Message message : batch(request.getBody())) {
                keys.add(message.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX));
            }
        } else {
            keys.add(headerKey(header));
        }
        return keys;
    }

    private static String headerKey(CommandCustomHeader header) {
        return MessageDecoder.string2messageProperties((String) get(header, "getI"))
            .get(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX);
    }

    private static Object get(CommandCustomHeader header, String getter) {
        try {
            return header.getClass().getMethod(getter).invoke(header);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    private static List<Message> batch(byte[] body) {
        try {
            return MessageDecoder.decodeMessages(ByteBuffer.wrap(body));
        } catch (Exception error) {
            throw new IllegalStateException("the client's own batch does not decode", error);
        }
    }
}
