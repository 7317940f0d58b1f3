/** Prints events as JSON lines: one per line, whole, and nothing else goes to standard output. */
package interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

final class Lines {
    private static final PrintStream OUT = new PrintStream(
        new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    private Lines() {
    }

    /** Keeps standard output for events: whatever a library prints goes to standard error. */
    static void claimStandardOutput() {
        System.setOut(System.err);
    }

    static Map<String, Object> event(String name) {
        Map<String, Object> event = new LinkedHashMap<>();
        event.put("event", name);
        return event;
    }

    static void print(Map<String, Object> event) {
        String line = JSON.toJSONString(event, SerializerFeature.WriteMapNullValue,
            SerializerFeature.DisableCircularReferenceDetect);
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }
}
