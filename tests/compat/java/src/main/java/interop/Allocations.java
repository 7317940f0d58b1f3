/** The client's own allocations of queues: by name, and what they make of given members and queues. */
package interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

final class Allocations {
    private Allocations() {
    }

    static AllocateMessageQueueStrategy named(String name) {
        switch (name == null ? "averagely" : name) {
            case "averagely":
                return new AllocateMessageQueueAveragely();
            case "averagely_by_circle":
                return new AllocateMessageQueueAveragelyByCircle();
            case "consistent_hash":
                return new AllocateMessageQueueConsistentHash();
            case "by_machine_room":
                return new AllocateMessageQueueByMachineRoom();
            default:
                throw new IllegalArgumentException("no such allocation: " + name);
        }
    }

    /** Lines of {strategy, rooms, member, members, queues: [[topic, broker, id]...]} to lists of indexes. */
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JSONObject question = JSON.parseObject(line);
            AllocateMessageQueueStrategy strategy = named(question.getString("strategy"));
            if (strategy instanceof AllocateMessageQueueByMachineRoom) {
                ((AllocateMessageQueueByMachineRoom) strategy).setConsumeridcs(
                    new HashSet<>(question.getJSONArray("rooms").toJavaList(String.class)));
            }
            List<MessageQueue> queues = new ArrayList<>();
            for (Object each : question.getJSONArray("queues")) {
                JSONArray queue = (JSONArray) each;
                queues.add(new MessageQueue(queue.getString(0), queue.getString(1), queue.getIntValue(2)));
            }
            List<String> members = question.getJSONArray("members").toJavaList(String.class);
            Collections.sort(queues);
            Collections.sort(members);
            List<Integer> given = new ArrayList<>();
            for (MessageQueue queue : strategy.allocate("g", question.getString("member"), queues, members)) {
                given.add(queues.indexOf(queue));
            }
            System.out.println("answer " + JSON.toJSONString(given));
        }
    }
}
