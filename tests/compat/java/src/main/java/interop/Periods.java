/** How often a client looks at servers by itself, and for how long it waits for them. */
package interop;

import org.apache.rocketmq.client.ClientConfig;

final class Periods {
    private static final int PERIOD_MS = 2000;   // 5 and 30 s, for which cases would wait
    private static final int TIMEOUT_MS = 20_000;   // 3 s, which are too short in a crowd

    private Periods() {
    }

    /** Its rounds of rebalancing stay 20 s apart, so that a broker's notice is seen to make them sooner. */
    static void suit(ClientConfig client) {
        client.setPollNameServerInterval(PERIOD_MS);
        client.setHeartbeatBrokerInterval(PERIOD_MS);
        client.setPersistConsumerOffsetInterval(PERIOD_MS);
        client.setMqClientApiTimeout(TIMEOUT_MS);
    }
}
