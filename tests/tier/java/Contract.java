package penstock.tier;

import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.CRC32C;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager.IndexType;

/** Calls the plugin as a broker does and prints what happened: `name result`, one a line. */
public final class Contract {
    private static final TopicIdPartition PLACE = new TopicIdPartition(
        Uuid.fromString("yRFUd0jGSsexGPmz78fUMg"), new TopicPartition("orders", 3));
    private static final Map<Integer, Long> EPOCHS = Map.of(4, 0L, 5, 10L);

    private final PenstockStorageManager plugin = new PenstockStorageManager();
    private final Path segment;
    private final long size;

    private Contract(Path store, Path segment) throws IOException {
        this.segment = segment;
        this.size = Files.size(segment.resolve("segment.log"));
        plugin.configure(Map.of("store", "file", "file.directory", store.toString(), "cluster.id",
            "MkU3OEVBNTcwNTJENDM2Qg", "broker.id", 1));
    }

    public static void main(String[] arguments) throws Exception {
        Contract contract = new Contract(Path.of(arguments[0]), Path.of(arguments[1]));
        long end = Long.parseLong(arguments[2]);
        contract.run(Path.of(arguments[0]), end);
        contract.plugin.close();
    }

    private void run(Path store, long end) throws Exception {
        RemoteLogSegmentMetadata first = metadata("AAAAAAAAAAAAAAAAAAAAAQ", end, size, Optional.empty());
        byte[] custom = plugin.copyLogSegmentData(first, data(true)).get().value();
        print("custom", HexFormat.of().formatHex(custom));
        RemoteLogSegmentMetadata finished =
            metadata("AAAAAAAAAAAAAAAAAAAAAQ", end, size, Optional.of(new CustomMetadata(custom)));
        print("whole", crc(plugin.fetchLogSegment(finished, 0)));
        print("range", crc(plugin.fetchLogSegment(finished, 100, 4_200_000)));
        print("past-the-end", plugin.fetchLogSegment(finished, (int) size - 7, (int) size + 1000).readAllBytes().length);
        print("after-the-end", plugin.fetchLogSegment(finished, (int) size).readAllBytes().length);
        for (IndexType type : IndexType.values()) {
            print(type.name(), new String(plugin.fetchIndex(finished, type).readAllBytes(), StandardCharsets.UTF_8));
        }
        readers(finished);
        print("again", error(() -> plugin.copyLogSegmentData(first, data(true))));
        RemoteLogSegmentMetadata plain = metadata("AAAAAAAAAAAAAAAAAAAAAg", end, size, Optional.empty());
        plugin.copyLogSegmentData(plain, data(false));
        print("no-transactions", error(() -> plugin.fetchIndex(plain, IndexType.TRANSACTION)));
        failures(store, end, finished);
        plugin.deleteLogSegmentData(plain);
        plugin.deleteLogSegmentData(plain);
        print("after-delete", crc(plugin.fetchLogSegment(plain, 0)));
    }

    /** Eight readers of a new plugin, whose cache is empty. */
    private void readers(RemoteLogSegmentMetadata finished) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(8);
        List<Future<String>> results = new ArrayList<>();
        long before = bean("Gets");
        for (int i = 0; i < 8; i++) {
            results.add(pool.submit(() -> crc(plugin.fetchLogSegment(finished, 0))));
        }
        for (Future<String> result : results) {
            print("reader", result.get());
        }
        pool.shutdown();
        print("gets-of-cached", bean("Gets") - before);
        print("gets", bean("Gets"));
    }

    private void failures(Path store, long end, RemoteLogSegmentMetadata finished) throws Exception {
        print("short-file", error(() -> plugin.copyLogSegmentData(
            metadata("AAAAAAAAAAAAAAAAAAAAAw", end, size + 1, Optional.empty()), data(true))));
        print("wrong-end", error(() -> plugin.copyLogSegmentData(
            metadata("AAAAAAAAAAAAAAAAAAAABA", end - 1, size, Optional.empty()), data(true))));
        byte[] bytes = Files.readAllBytes(segment.resolve("segment.log"));
        bytes[bytes.length / 2] ^= 1;
        Path damaged = Files.write(segment.resolve("damaged.log"), bytes);
        print("damaged", error(() -> plugin.copyLogSegmentData(
            metadata("AAAAAAAAAAAAAAAAAAAABQ", end, size, Optional.empty()), data(damaged, true))));
        print("blocked", bean("CopiesBlocked"));
        print("missing", error(() -> plugin.fetchLogSegment(
            metadata("AAAAAAAAAAAAAAAAAAAABg", end, size, Optional.empty()), 0)));
        print("missing-index", error(() -> plugin.fetchIndex(
            metadata("AAAAAAAAAAAAAAAAAAAABg", end, size, Optional.empty()), IndexType.TRANSACTION)));
        RemoteLogSegmentMetadata exhausted = metadata("AAAAAAAAAAAAAAAAAAAACA", end, size, Optional.empty());
        for (Error each : List.of(new OutOfMemoryError(), new NoClassDefFoundError())) {
            print("error", error(() -> plugin.copyLogSegmentData(exhausted, failing(each))));
        }
        print("negative", error(() -> plugin.fetchLogSegment(finished, -1)));
        RemoteLogSegmentMetadata spoilt = metadata("AAAAAAAAAAAAAAAAAAAABw", end, size, Optional.empty());
        plugin.copyLogSegmentData(spoilt, data(true));
        print("blocked-after", bean("CopiesBlocked"));
        Path log = store.resolve(SegmentKeys.of("tier/MkU3OEVBNTcwNTJENDM2Qg", spoilt).log());
        Files.write(log, bytes);
        print("spoilt", error(() -> plugin.fetchLogSegment(spoilt, bytes.length / 2).readAllBytes()));
        print("wrong-custom", error(() -> plugin.fetchLogSegment(
            metadata("AAAAAAAAAAAAAAAAAAAAAg", end, size, Optional.of(new CustomMetadata(new byte[] {1, 0, 0, 0, 0}))),
            0)));
    }

    private RemoteLogSegmentMetadata metadata(String id, long end, long bytes, Optional<CustomMetadata> custom) {
        return new RemoteLogSegmentMetadata(new RemoteLogSegmentId(PLACE, Uuid.fromString(id)), 0, end,
            1_700_000_000_123L, 1, 1_700_000_000_456L, (int) bytes, custom,
            RemoteLogSegmentState.COPY_SEGMENT_STARTED, EPOCHS);
    }

    /** A segment whose file cannot be opened for lack of memory, or of a class. */
    private LogSegmentData failing(Error error) {
        return new LogSegmentData(segment, segment, segment, Optional.empty(), segment, ByteBuffer.allocate(0)) {
            @Override
            public Path logSegment() {
                throw error;
            }
        };
    }

    private LogSegmentData data(boolean transactional) throws IOException {
        return data(segment.resolve("segment.log"), transactional);
    }

    private LogSegmentData data(Path log, boolean transactional) {
        return new LogSegmentData(log, segment.resolve("offset"), segment.resolve("timestamp"),
            transactional ? Optional.of(segment.resolve("transaction")) : Optional.empty(),
            segment.resolve("producer_snapshot"),
            ByteBuffer.wrap("leader epochs".getBytes(StandardCharsets.UTF_8)));
    }

    private static String crc(InputStream stream) throws IOException {
        CRC32C crc = new CRC32C();
        byte[] all = stream.readAllBytes();
        crc.update(all, 0, all.length);
        return all.length + ":" + String.format("%08x", crc.getValue());
    }

    private static long bean(String attribute) throws Exception {
        Object value = java.lang.management.ManagementFactory.getPlatformMBeanServer().getAttribute(
            new javax.management.ObjectName("penstock.tier:type=Tier"), attribute);
        return ((Number) value).longValue();
    }

    private static String error(Callable<?> call) {
        try {
            call.call();
            return "none";
        } catch (Exception error) {
            return error.getClass().getSimpleName();
        }
    }

    private static void print(String name, Object value) {
        System.out.println(name + " " + value);
    }
}
