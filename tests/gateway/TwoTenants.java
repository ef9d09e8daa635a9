import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/** Two tenants at once, each with the Java clients' own defaults: topic ids, fetch sessions, idempotence. */
public class TwoTenants {
    public static void main(String[] arguments) {
        Tenants.both(arguments, (login, topic, group, name) -> new Tenant(login).live(topic, group, name));
    }

    record Tenant(Tenants.Login access) {
        Properties login() {
            return access.properties();
        }

        String live(String topic, String group, String name) throws Exception {
            try (Admin admin = Admin.create(login())) {
                admin.createTopics(List.of(new NewTopic(topic, Optional.of(2), Optional.empty()))).all().get();
                send(topic, name);
                List<String> values = receive(topic, group, 10);
                Set<String> topics = admin.listTopics().names().get();
                Set<String> groups = new TreeSet<>();
                admin.listGroups().all().get().forEach(listing -> groups.add(listing.groupId()));
                TopicDescription described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
                long committed = 0;
                for (var offset : admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().values()) {
                    committed += offset.offset();
                }
                String cluster = admin.describeCluster().clusterId().get();
                admin.deleteConsumerGroups(List.of(group)).all().get();
                admin.deleteTopics(List.of(topic)).all().get();
                boolean foreign = topics.stream().anyMatch(t -> t.startsWith("lkc-")) || groups.stream().anyMatch(g -> g.startsWith("lkc-"));
                return String.join("|", name, String.join(",", values), String.valueOf(topics.contains(topic)),
                    String.valueOf(groups.contains(group)), String.valueOf(described.partitions().size()),
                    String.valueOf(committed), cluster, String.valueOf(foreign));
            }
        }

        void send(String topic, String name) throws Exception {
            Properties login = login();
            login.put("transactional.id", "writer");
            try (Producer<String, String> producer = new KafkaProducer<>(login, new StringSerializer(), new StringSerializer())) {
                producer.initTransactions();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, "aborted")).get();
                producer.abortTransaction();
                producer.beginTransaction();
                for (int n = 0; n < 10; n++) {
                    producer.send(new ProducerRecord<>(topic, null, name + "-" + n));
                }
                producer.commitTransaction();
            }
        }

        List<String> receive(String topic, String group, int count) {
            Properties login = login();
            login.put("group.id", group);
            login.put("auto.offset.reset", "earliest");
            login.put("isolation.level", "read_committed");
            List<String> values = new ArrayList<>();
            try (Consumer<String, String> consumer = new KafkaConsumer<>(login, new StringDeserializer(), new StringDeserializer())) {
                consumer.subscribe(List.of(topic));
                while (values.size() < count) {
                    consumer.poll(Duration.ofMillis(200)).forEach(record -> values.add(record.value()));
                }
                consumer.commitSync();
            }
            Collections.sort(values);
            return values;
        }
    }
}
