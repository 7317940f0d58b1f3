/** A client process under remote control: commands come as JSON lines, what happened leaves as JSON lines. */
package interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;

public final class Agent {
    private final Senders senders = new Senders();
    private final Members members = new Members();
    private final Questions questions = new Questions();
    private final Transactions transactions = new Transactions();

    private Agent() {
    }

    public static void main(String[] arguments) throws Exception {
        Lines.claimStandardOutput();
        new Agent().serve();
        System.exit(0);   // the client library leaves threads behind
    }

    private void serve() throws Exception {
        BufferedReader commands = new BufferedReader(
            new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Lines.print(Lines.event("ready"));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JSONObject command = JSON.parseObject(line);
            try {
                obey(command);
            } catch (Exception error) {
                Map<String, Object> event = Lines.event("failed");
                event.put("id", command.get("id"));
                event.put("error", told(error));
                Lines.print(event);
            }
        }
        members.close();
        questions.close();
        senders.close();
        transactions.close();
    }

    /** With what caused it: the client hides the broker's words behind those of its last try. */
    private static String told(Throwable error) {
        return error.getCause() == null ? error.toString() : error + " because of " + told(error.getCause());
    }

    private void obey(JSONObject command) throws Exception {
        switch (command.getString("command")) {
            case "send":
                senders.send(command);
                break;
            case "transact":
                transactions.transact(command);
                break;
            case "create":
                senders.create(command);
                break;
            case "join":
                members.join(command);
                break;
            case "leave":
                members.leave(command);
                break;
            case "ask":
                questions.ask(command);
                break;
            case "reply":
                questions.reply(command);
                break;
            default:
                throw new IllegalArgumentException("no such command: " + command);
        }
    }
}
