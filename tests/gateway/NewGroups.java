import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.*;

/** Two tenants at once with the new kinds of groups: KIP-848 by a pattern, and a share group (KIP-932). */
public class NewGroups {
    public static void main(String[] arguments) {
        Tenants.both(arguments, (login, topic, group, name) -> new Tenant(login).live(topic, group, name));
    }

    record Tenant(Tenants.Login access) {
        Properties login() {
            return access.properties();
        }

        String live(String topic, String group, String name) throws Exception {
            String shared = group + "-shared";
            try (Admin admin = Admin.create(login())) {
                admin.createTopics(List.of(new NewTopic(topic, Optional.of(2), Optional.empty()))).all().get();
                var earliest = new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET);
                admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, shared), List.of(earliest))).all().get();
                try (Producer<String, String> producer = new KafkaProducer<>(login(), new StringSerializer(), new StringSerializer())) {
                    for (int n = 0; n < 10; n++) {
                        producer.send(new ProducerRecord<>(topic, null, name + "-" + n)).get();
                    }
                }
                String described = "";
                List<String> values = new ArrayList<>();
                Properties login = login();
                login.put("group.id", group);
                login.put("group.protocol", "consumer");
                login.put("auto.offset.reset", "earliest");
                try (Consumer<String, String> consumer = new KafkaConsumer<>(login, new StringDeserializer(), new StringDeserializer())) {
                    consumer.subscribe(new SubscriptionPattern("^" + topic.substring(0, topic.length() - 2) + ".*$"));
                    while (values.size() < 10) {
                        consumer.poll(Duration.ofMillis(200)).forEach(record -> values.add(record.value()));
                    }
                    consumer.commitSync();
                    ConsumerGroupDescription d = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
                    MemberDescription member = d.members().iterator().next();
                    described = d.type() + " " + member.assignment().topicPartitions().stream().map(TopicPartition::topic).distinct().toList();
                }
                List<String> acknowledged = share(topic, shared);
                ShareGroupDescription of = admin.describeShareGroups(List.of(shared)).all().get().get(shared);
                Set<String> groups = new TreeSet<>();
                admin.listGroups().all().get().forEach(listing -> groups.add(listing.groupId() + " " + listing.type().get()));
                boolean foreign = groups.stream().anyMatch(g -> g.startsWith("lkc-"));
                Collections.sort(values);
                return String.join("|", name, String.join(",", values), described, String.join(",", acknowledged), of.groupId(),
                    String.valueOf(groups.contains(group + " Consumer")), String.valueOf(groups.contains(shared + " Share")), String.valueOf(foreign));
            }
        }

        List<String> share(String topic, String group) {
            Properties login = login();
            login.put("group.id", group);
            Set<String> values = new TreeSet<>();
            try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(login, new StringDeserializer(), new StringDeserializer())) {
                consumer.subscribe(List.of(topic));
                while (values.size() < 10) {
                    consumer.poll(Duration.ofMillis(200)).forEach(record -> values.add(record.value()));
                }
                consumer.commitSync();
            }
            return List.copyOf(values);
        }
    }
}
