package penstock.tier;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.Map;
import java.util.TreeMap;
import java.util.zip.CRC32C;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;

/** One copy of a segment to the store: its bytes, checked as they pass, its indexes, and last its manifest. */
final class SegmentCopy {
    private static final int BUFFER_BYTES = 1 << 20; // divides the bytes of a chunk

    private final ObjectStore store;
    private final TierSettings settings;
    private final RemoteLogSegmentMetadata segment;
    private final SegmentKeys keys;

    SegmentCopy(ObjectStore store, TierSettings settings, RemoteLogSegmentMetadata segment) {
        this.store = store;
        this.settings = settings;
        this.segment = segment;
        this.keys = SegmentKeys.of(settings.root(), segment);
    }

    /** Copies the segment; the bytes of its manifest. */
    byte[] run(LogSegmentData data) throws IOException, BatchCheck.DamagedSegment {
        FaultPoints.reach(FaultPoints.COPY_BEGUN);
        long size = segment.segmentSizeInBytes();
        int[] crcs = new int[(int) ((size + Manifest.CHUNK_BYTES - 1) / Manifest.CHUNK_BYTES)];
        String digest = copyLog(data.logSegment(), size, crcs);
        FaultPoints.reach(FaultPoints.COPY_DATA);
        Map<String, int[]> indexes = new TreeMap<>();
        byte[] all = indexes(data, indexes);
        try (ObjectStore.Upload upload = store.begin(keys.indexes())) {
            upload.write(all, 0, all.length);
            requireNew(upload.commit(), keys.indexes());
        }
        FaultPoints.reach(FaultPoints.COPY_INDEXES);
        Manifest manifest =
            new Manifest(size, Manifest.CHUNK_BYTES, crcs, all.length, Manifest.crc(all), indexes, digest);
        byte[] encoded = manifest.encode(settings.cluster(), segment);
        if (!store.create(keys.manifest(), encoded)) {
            // A request that was repeated after its response was lost has created it.
            boolean same = Arrays.equals(encoded, store.readAll(keys.manifest(), Manifest.BYTES_MAX));
            requireNew(same, keys.manifest());
        }
        FaultPoints.reach(FaultPoints.COPY_MANIFEST);
        return encoded;
    }

    private String copyLog(Path path, long size, int[] crcs) throws IOException, BatchCheck.DamagedSegment {
        BatchCheck check = new BatchCheck(segment.startOffset(), segment.endOffset());
        CRC32C crc = new CRC32C();
        byte[] buffer = new byte[(int) Math.min(BUFFER_BYTES, size)];
        try (FileChannel file = open(path); ObjectStore.Upload upload = store.begin(keys.log())) {
            for (long at = 0; at < size; at += buffer.length) {
                int length = (int) Math.min(buffer.length, size - at);
                readFully(file, ByteBuffer.wrap(buffer, 0, length), size);
                check.update(buffer, length);
                crc.update(buffer, 0, length);
                long end = at + length;
                if (end % Manifest.CHUNK_BYTES == 0 || end == size) {
                    crcs[(int) ((end - 1) / Manifest.CHUNK_BYTES)] = (int) crc.getValue();
                    crc.reset();
                }
                upload.write(buffer, 0, length);
            }
            String digest = check.finish();
            requireNew(upload.commit(), keys.log());
            return digest;
        }
    }

    private static FileChannel open(Path path) throws IOException {
        return FileChannel.open(path, StandardOpenOption.READ);
    }

    private static void readFully(FileChannel file, ByteBuffer target, long size)
        throws IOException, BatchCheck.DamagedSegment {
        while (target.hasRemaining()) {
            if (file.read(target) < 0) {
                throw new BatchCheck.DamagedSegment("it has " + file.size() + " bytes, expected " + size);
            }
        }
    }

    private static byte[] indexes(LogSegmentData data, Map<String, int[]> ranges)
        throws IOException, BatchCheck.DamagedSegment {
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        append(all, ranges, "offset", file(data.offsetIndex(), "offset index"));
        append(all, ranges, "timestamp", file(data.timeIndex(), "time index"));
        append(all, ranges, "producer_snapshot", file(data.producerSnapshotIndex(), "producer snapshot"));
        ByteBuffer epochs = data.leaderEpochIndex().duplicate();
        byte[] epochBytes = new byte[epochs.remaining()];
        epochs.get(epochBytes);
        append(all, ranges, "leader_epoch", epochBytes);
        if (data.transactionIndex().isPresent()) {
            append(all, ranges, "transaction", file(data.transactionIndex().get(), "transaction index"));
        }
        return all.toByteArray();
    }

    private static byte[] file(Path path, String what) throws IOException, BatchCheck.DamagedSegment {
        try {
            if (path != null) {
                return Files.readAllBytes(path);
            }
        } catch (NoSuchFileException removed) {
            throw new BatchCheck.DamagedSegment("its " + what + " disappeared");
        }
        throw new BatchCheck.DamagedSegment("its " + what + " is missing");
    }

    private static void append(ByteArrayOutputStream all, Map<String, int[]> ranges, String name, byte[] bytes) {
        ranges.put(name, new int[] {all.size(), bytes.length});
        all.writeBytes(bytes);
    }

    private static void requireNew(boolean created, String key) throws IOException {
        if (!created) {
            throw new IOException(key + " exists already; the next attempt has another id");
        }
    }
}
