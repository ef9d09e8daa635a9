import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.*;

/** A share consumer of two topics continues when one of them is deleted. */
public class ShareAfterDeletion {
    private static final int RECORDS = 6;

    public static void main(String[] arguments) throws Exception {
        String kept = arguments[1] + "-kept", deleted = arguments[1] + "-deleted", group = arguments[2];
        Properties login = new Tenants.Login(arguments[0], arguments[3], arguments[4]).properties();
        login.put("group.id", group);
        try (Admin admin = Admin.create(login);
             Producer<String, String> producer = new KafkaProducer<>(login, new StringSerializer(), new StringSerializer());
             KafkaShareConsumer<String, String> consumer =
                 new KafkaShareConsumer<>(login, new StringDeserializer(), new StringDeserializer())) {
            var earliest = new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, group), List.of(earliest))).all().get();
            create(admin, kept);
            create(admin, deleted);
            consumer.subscribe(List.of(kept, deleted));
            produce(producer, kept, "first");
            produce(producer, deleted, "first");
            consume(consumer, 2 * RECORDS);
            System.out.println("consumed both");
            admin.deleteTopics(List.of(deleted)).all().get();
            produce(producer, kept, "second");
            consume(consumer, RECORDS);
            System.out.println("consumed after the deletion");
        }
    }

    private static void create(Admin admin, String topic) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, Optional.of(3), Optional.empty()))).all().get();
    }

    private static void produce(Producer<String, String> producer, String topic, String value) throws Exception {
        for (int n = 0; n < RECORDS; n++)
            producer.send(new ProducerRecord<>(topic, n % 3, null, topic + " " + value + " " + n)).get();
    }

    private static void consume(KafkaShareConsumer<String, String> consumer, int count) {
        Set<String> values = new TreeSet<>();
        while (values.size() < count)
            consumer.poll(Duration.ofMillis(200)).forEach(record -> values.add(record.value()));
        consumer.commitSync();
    }
}
