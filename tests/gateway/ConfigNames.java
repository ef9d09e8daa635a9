import java.util.Map;
import java.util.TreeMap;

import kafka.server.KafkaConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.storage.internals.log.LogConfig;

/** Every setting that this Kafka knows: kind of resource, name, type, default and validator. */
public class ConfigNames {
    public static void main(String[] arguments) {
        print("topic", LogConfig.configKeys());
        print("group", GroupConfig.CONFIG_DEF.configKeys());
        print("broker", KafkaConfig.configDef().configKeys());
    }

    private static void print(String kind, Map<String, ConfigDef.ConfigKey> keys) {
        new TreeMap<>(keys).forEach((name, key) -> {
            if (!key.internalConfig)
                System.out.println(String.join("\t", kind, name, key.type.name(), String.valueOf(key.defaultValue),
                    String.valueOf(key.validator).replaceAll("\\s+", " ")));
        });
    }
}
