import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.state.*;

/**
 * Kafka Streams as two tenants under the same names: words counted exactly once, by way of a
 * repartition topic and of a store with its changelog, all of which Streams creates for itself.
 */
public class WordCount {
    static final int SENTENCES = 20;

    public static void main(String[] arguments) {
        Tenants.both(arguments, WordCount::live);
    }

    static String live(Tenants.Login login, String topic, String application, String name) throws Exception {
        String counted = topic + "-counted";
        try (Admin admin = Admin.create(login.properties())) {
            admin.createTopics(List.of(new NewTopic(topic, 2, (short) 3), new NewTopic(counted, 2, (short) 3))).all().get();
            say(login, topic, name);
            Path state = Files.createTempDirectory("streams");
            String found;
            try (KafkaStreams streams = new KafkaStreams(topology(topic, counted), settings(login, application, state))) {
                streams.setUncaughtExceptionHandler(failure -> {
                    failure.printStackTrace();
                    return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
                });
                streams.start();
                found = told(login, counted);
                ReadOnlyKeyValueStore<String, Long> store = streams.store(
                    StoreQueryParameters.fromNameAndType("counts", QueryableStoreTypes.keyValueStore()));
                found += "|" + store.get(name);
                found += "|" + streams.metadataForLocalThreads().size();
            }
            Set<String> topics = admin.listTopics().names().get();
            Set<String> groups = admin.listGroups().all().get().stream().map(GroupListing::groupId).collect(Collectors.toSet());
            String internal = topics.stream().filter(t -> t.startsWith(application)).map(t -> t.substring(application.length()))
                .sorted().collect(Collectors.joining(","));
            boolean foreign = Stream.concat(topics.stream(), groups.stream()).anyMatch(n -> n.startsWith("lkc-"));
            return name + "|" + found + "|" + internal + "|" + groups.contains(application) + "|" + foreign;
        }
    }

    static Topology topology(String source, String target) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(source, Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(sentence -> List.of(sentence.split(" ")))
            .groupBy((key, word) -> word, Grouped.with("words", Serdes.String(), Serdes.String()))
            .count(Materialized.as("counts"))
            .toStream()
            .to(target, Produced.with(Serdes.String(), Serdes.Long()));
        return builder.build();
    }

    static Properties settings(Tenants.Login login, String application, Path state) {
        Properties settings = login.properties();
        settings.put("application.id", application);
        settings.put("state.dir", state.toString());
        settings.put("replication.factor", "3");
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("statestore.cache.max.bytes", "0");
        settings.put("commit.interval.ms", "100");
        settings.put("group.protocol", "classic");
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());
        return settings;
    }

    static void say(Tenants.Login login, String topic, String name) throws Exception {
        try (var producer = new KafkaProducer<>(login.properties(), new StringSerializer(), new StringSerializer())) {
            for (int n = 0; n < SENTENCES; n++) {
                producer.send(new ProducerRecord<>(topic, Integer.toString(n), "water " + name)).get();
            }
        }
    }

    /** What was counted, once it has come to the last of it. */
    static String told(Tenants.Login login, String counted) {
        Properties settings = login.properties();
        settings.put("group.id", counted + "-readers");
        settings.put("auto.offset.reset", "earliest");
        settings.put("isolation.level", "read_committed");
        Map<String, Long> counts = new TreeMap<>();
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new LongDeserializer())) {
            consumer.subscribe(List.of(counted));
            while (counts.size() < 2 || counts.values().stream().anyMatch(count -> count < SENTENCES)) {
                consumer.poll(Duration.ofSeconds(1)).forEach(one -> counts.put(one.key(), one.value()));
            }
        }
        return counts.toString();
    }
}
