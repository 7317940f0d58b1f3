/** Notes what the client really puts into its send headers: the born timestamp is known nowhere else. */
package interop;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.protocol.header.SendMessageRequestHeaderV2;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

final class WireWatch implements RPCHook {
    private final List<Map<String, Object>> seen = new ArrayList<>();

    @Override
    public void doBeforeRequest(String remoteAddress, RemotingCommand request) {
        CommandCustomHeader header = request.readCustomHeader();
        if (header instanceof SendMessageRequestHeaderV2) {
            note(request, (SendMessageRequestHeaderV2) header);
        }
    }

    @Override
    public void doAfterResponse(String remoteAddress, RemotingCommand request, RemotingCommand response) {
    }

    /** Everything noted since the last call. */
    synchronized List<Map<String, Object>> take() {
        List<Map<String, Object>> taken = new ArrayList<>(seen);
        seen.clear();
        return taken;
    }

    private synchronized void note(RemotingCommand request, SendMessageRequestHeaderV2 header) {
        for (String uniqueKey : uniqueKeys(request, header)) {
            Map<String, Object> frame = new LinkedHashMap<>();
            frame.put("uniqueKey", uniqueKey);
            frame.put("code", request.getCode());
            frame.put("queueId", header.getE());
            frame.put("sysFlag", header.getF());
            frame.put("bornTimestamp", header.getG());
            seen.add(frame);
        }
    }

    private static List<String> uniqueKeys(RemotingCommand request, SendMessageRequestHeaderV2 header) {
        List<String> keys = new ArrayList<>();
        if (header.isM()) {
            for (Message message : batch(request.getBody())) {
                keys.add(message.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX));
            }
        } else {
            keys.add(MessageDecoder.string2messageProperties(header.getI())
                .get(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX));
        }
        return keys;
    }

    private static List<Message> batch(byte[] body) {
        try {
            return MessageDecoder.decodeMessages(ByteBuffer.wrap(body));
        } catch (Exception error) {
            throw new IllegalStateException("the client's own batch does not decode", error);
        }
    }
}
