import java.io.FileReader;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.*;

/** Creates a topic, writes ten records in a transaction and reads them in a group, with a file of settings. */
public class RoundTrip {
    static final int RECORDS = 10;

    /** Arguments: properties file, topic. Prints the topics of the tenant and the values read. */
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (FileReader file = new FileReader(arguments[0])) {
            settings.load(file);
        }
        String topic = arguments[1];
        try (Admin admin = Admin.create(settings)) {
            admin.createTopics(List.of(new NewTopic(topic, Optional.of(2), Optional.empty()))).all().get();
            write(with(settings, "transactional.id", "java"), topic);
            List<String> values = read(with(settings, "group.id", "java", "auto.offset.reset", "earliest"), topic);
            System.out.println(new TreeSet<>(admin.listTopics().names().get()) + " " + new TreeSet<>(values));
            admin.deleteConsumerGroups(List.of("java")).all().get();
            admin.deleteTopics(List.of(topic)).all().get();
        }
    }

    static Properties with(Properties settings, String... more) {
        Properties all = new Properties();
        all.putAll(settings);
        for (int n = 0; n < more.length; n += 2) {
            all.put(more[n], more[n + 1]);
        }
        return all;
    }

    static void write(Properties settings, String topic) throws Exception {
        try (Producer<String, String> producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            for (int n = 0; n < RECORDS; n++) {
                producer.send(new ProducerRecord<>(topic, null, "v" + n));
            }
            producer.commitTransaction();
        }
    }

    static List<String> read(Properties settings, String topic) {
        List<String> values = new ArrayList<>();
        try (Consumer<String, String> consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (values.size() < RECORDS) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> values.add(record.value()));
            }
            consumer.commitSync();
        }
        return values;
    }
}
