package penstock.tier;

import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.zip.CRC32C;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.utils.ChildFirstClassLoader;
import org.apache.kafka.server.log.remote.storage.ClassLoaderAwareRemoteStorageManager;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/**
 * Loads the plugin in a separate class loader, as a broker does, and carries out one command a line:
 * `copy`, `read`, `index` or `delete`, and the id of a segment. Prints one line for each: a result or the
 * simple name of the exception, and its message.
 */
public final class Remote {
    private static final TopicIdPartition PLACE = new TopicIdPartition(
        Uuid.fromString("yRFUd0jGSsexGPmz78fUMg"), new TopicPartition("orders", 3));

    private final RemoteStorageManager plugin;
    private final Path segment;
    private final long end;

    private Remote(RemoteStorageManager plugin, Path segment, long end) {
        this.plugin = plugin;
        this.segment = segment;
        this.end = end;
    }

    /** The class path of the plugin, the files of a segment, its last offset, and settings as `name=value`. */
    public static void main(String[] arguments) throws Exception {
        ClassLoader loader = new ChildFirstClassLoader(arguments[0], Remote.class.getClassLoader());
        Object created = loader.loadClass("penstock.tier.PenstockStorageManager").getConstructor().newInstance();
        Map<String, Object> configs = new HashMap<>();
        for (int i = 3; i < arguments.length; i++) {
            int equals = arguments[i].indexOf('=');
            configs.put(arguments[i].substring(0, equals), arguments[i].substring(equals + 1));
        }
        try (RemoteStorageManager plugin =
                 new ClassLoaderAwareRemoteStorageManager((RemoteStorageManager) created, loader)) {
            plugin.configure(configs);
            new Remote(plugin, Path.of(arguments[1]), Long.parseLong(arguments[2])).serve();
        }
    }

    private void serve() throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            String result;
            try {
                result = carryOut(words[0], words[1]);
            } catch (Exception error) {
                result = error.getClass().getSimpleName() + " " + String.valueOf(error.getMessage()).replace('\n', ' ');
            }
            System.out.println(result);
            System.out.flush();
        }
    }

    private String carryOut(String command, String id) throws Exception {
        Path log = segment.resolve("segment.log");
        RemoteLogSegmentMetadata metadata = new RemoteLogSegmentMetadata(
            new RemoteLogSegmentId(PLACE, Uuid.fromString(id)), 0, end, 1_700_000_000_123L, 1, 1_700_000_000_456L,
            (int) Files.size(log), Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_STARTED, Map.of(4, 0L));
        switch (command) {
            case "copy":
                LogSegmentData data = new LogSegmentData(log, segment.resolve("offset"), segment.resolve("timestamp"),
                    Optional.empty(), segment.resolve("producer_snapshot"), ByteBuffer.wrap(new byte[] {1}));
                return "copied " + plugin.copyLogSegmentData(metadata, data).isPresent();
            case "read":
                return "read " + crc(plugin.fetchLogSegment(metadata, 0));
            case "index":
                return "read " + crc(plugin.fetchIndex(metadata, RemoteStorageManager.IndexType.OFFSET));
            case "delete":
                plugin.deleteLogSegmentData(metadata);
                return "deleted";
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private static String crc(InputStream stream) throws Exception {
        CRC32C crc = new CRC32C();
        byte[] all = stream.readAllBytes();
        crc.update(all, 0, all.length);
        return all.length + ":" + String.format("%08x", crc.getValue());
    }
}
