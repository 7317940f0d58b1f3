/** Runs mqadmin commands one after the other in one Java: the start of a Java takes longer than they do. */
package interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

public final class AdminShell {
    private AdminShell() {
    }

    /** A line in is a JSON list of arguments; a line out, behind a mark, what the command printed. */
    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        BufferedReader lines = new BufferedReader(
            new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            System.setOut(new PrintStream(out, true, "UTF-8"));
            System.setErr(new PrintStream(err, true, "UTF-8"));
            MQAdminStartup.main0(JSON.parseArray(line, String.class).toArray(new String[0]), null);
            System.out.flush();
            JSONObject answer = new JSONObject();
            answer.put("out", out.toString("UTF-8"));
            answer.put("err", err.toString("UTF-8"));
            answers.println("@" + answer.toJSONString());
            answers.flush();
        }
    }
}
