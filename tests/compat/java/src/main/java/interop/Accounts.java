/** Whose requests a client signs: the account that a command or an option names, or nobody's. */
package interop;

import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

final class Accounts {
    private Accounts() {
    }

    static RPCHook hook(JSONObject command) {
        return hook(command.getString("accessKey"), command.getString("secretKey"));
    }

    /** Null without a key: then nothing is signed. */
    static RPCHook hook(String accessKey, String secretKey) {
        return accessKey == null ? null : new AclClientRPCHook(new SessionCredentials(accessKey, secretKey));
    }
}
