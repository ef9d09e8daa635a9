package penstock.tier;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.zip.CRC32C;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;

/** What is known of a stored segment: format 1, `docs/tier-format.md`. Without its manifest it does not exist. */
record Manifest(long logBytes, int chunkBytes, int[] chunkCrcs, int indexBytes, int indexCrc,
                Map<String, int[]> indexes, String batchDigest) {
    static final int FORMAT = 1;
    static final int CHUNK_BYTES = 4 << 20;
    static final int BYTES_MAX = 1 << 20;
    static final int CUSTOM_METADATA_BYTES = 5;
    static final byte CUSTOM_METADATA_VERSION = 1;

    private static final ObjectMapper JSON =
        new ObjectMapper().enable(SerializationFeature.ORDER_MAP_ENTRIES_BY_KEYS);

    int chunkCount() {
        return chunkCrcs.length;
    }

    int bytesOfChunk(int chunk) {
        return (int) Math.min(chunkBytes, logBytes - (long) chunk * chunkBytes);
    }

    /** One line of JSON, with sorted keys and without white space. */
    byte[] encode(String cluster, RemoteLogSegmentMetadata segment) {
        TopicIdPartition place = segment.remoteLogSegmentId().topicIdPartition();
        Map<String, Object> fields = new TreeMap<>();
        fields.put("format", FORMAT);
        fields.put("cluster", cluster);
        fields.put("topic_id", place.topicId().toString());
        fields.put("topic", place.topic());
        fields.put("partition", place.partition());
        fields.put("segment_id", segment.remoteLogSegmentId().id().toString());
        fields.put("base_offset", segment.startOffset());
        fields.put("end_offset", segment.endOffset());
        fields.put("max_timestamp_ms", segment.maxTimestampMs());
        fields.put("event_timestamp_ms", segment.eventTimestampMs());
        fields.put("broker", segment.brokerId());
        List<long[]> epochs = new ArrayList<>();
        segment.segmentLeaderEpochs().forEach((epoch, start) -> epochs.add(new long[] {epoch, start}));
        fields.put("leader_epochs", epochs);
        fields.put("log_bytes", logBytes);
        fields.put("chunk_bytes", chunkBytes);
        List<String> crcs = new ArrayList<>();
        for (int crc : chunkCrcs) {
            crcs.add(hex(crc));
        }
        fields.put("chunk_crc32c", crcs);
        fields.put("idx_bytes", indexBytes);
        fields.put("idx_crc32c", hex(indexCrc));
        fields.put("indexes", new TreeMap<>(indexes));
        fields.put("batch_digest", batchDigest);
        fields.put("encryption", null);
        try {
            return JSON.writeValueAsBytes(fields);
        } catch (JsonProcessingException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    static Manifest decode(byte[] bytes) throws IOException {
        JsonNode root = JSON.readTree(bytes);
        if (root.path("format").asInt() != FORMAT) {
            throw new IOException("the manifest has format " + root.path("format") + ", expected " + FORMAT);
        }
        if (!root.path("encryption").isNull()) {
            throw new IOException("the segment is encrypted, and this broker has no key for it");
        }
        JsonNode listed = root.required("chunk_crc32c");
        int[] crcs = new int[listed.size()];
        for (int i = 0; i < crcs.length; i++) {
            crcs[i] = Integer.parseUnsignedInt(listed.get(i).asText(), 16);
        }
        Map<String, int[]> indexes = new TreeMap<>();
        root.required("indexes").properties().forEach(entry ->
            indexes.put(entry.getKey(), new int[] {entry.getValue().get(0).asInt(), entry.getValue().get(1).asInt()}));
        Manifest manifest = new Manifest(root.required("log_bytes").asLong(), root.required("chunk_bytes").asInt(),
            crcs, root.required("idx_bytes").asInt(),
            Integer.parseUnsignedInt(root.required("idx_crc32c").asText(), 16), indexes,
            root.required("batch_digest").asText());
        manifest.check();
        return manifest;
    }

    private void check() throws IOException {
        boolean sized = chunkBytes > 0 && chunkBytes <= CHUNK_BYTES && logBytes >= 0;
        if (!sized || chunkCrcs.length != (logBytes + chunkBytes - 1) / chunkBytes) {
            throw new IOException("the manifest lists " + chunkCrcs.length + " chunks of " + chunkBytes + " bytes for "
                + logBytes + " bytes");
        }
        for (int[] range : indexes.values()) {
            if (range[0] < 0 || range[1] < 0 || (long) range[0] + range[1] > indexBytes) {
                throw new IOException("the manifest lists an index outside of its object");
            }
        }
    }

    /** What Kafka keeps of the segment for us: the CRC of its manifest. */
    static byte[] customMetadata(byte[] manifest) {
        return ByteBuffer.allocate(CUSTOM_METADATA_BYTES).put(CUSTOM_METADATA_VERSION).putInt(crc(manifest)).array();
    }

    static int crc(byte[] bytes) {
        CRC32C crc = new CRC32C();
        crc.update(bytes, 0, bytes.length);
        return (int) crc.getValue();
    }

    private static String hex(int crc) {
        return String.format("%08x", crc);
    }
}
