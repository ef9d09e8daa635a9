package penstock.tier;

import java.util.Map;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.server.policy.AlterConfigPolicy;
import org.apache.kafka.server.policy.CreateTopicPolicy;

/**
 * Refuses `retention.bytes` on a tiered topic, on the controllers: KAFKA-20732 deletes tiered data inside
 * retention after a restart or leader change, on all replicas.
 *
 * <p>Kafka shows a policy only the settings in the request. A change of one of the two settings alone passes
 * here; gateways and commands check it against the other.
 */
public final class TieredTopicPolicy implements CreateTopicPolicy, AlterConfigPolicy {
    static final String TIERED = "remote.storage.enable";
    static final String RETENTION_BYTES = "retention.bytes";

    @Override
    public void configure(Map<String, ?> configs) {
        // It has no settings.
    }

    @Override
    public void validate(CreateTopicPolicy.RequestMetadata request) {
        check(request.configs());
    }

    @Override
    public void validate(AlterConfigPolicy.RequestMetadata request) {
        check(request.configs());
    }

    private static void check(Map<String, String> configs) {
        String bytes = configs.get(RETENTION_BYTES);
        if (bytes != null && !bytes.trim().startsWith("-") && Boolean.parseBoolean(configs.get(TIERED))) {
            throw new PolicyViolationException("retention.bytes cannot be set on a tiered topic: with it, Kafka may"
                + " delete tiered data too early (KAFKA-20732). Use retention.ms and local.retention.bytes.");
        }
    }

    @Override
    public void close() {
        // It holds nothing.
    }
}
