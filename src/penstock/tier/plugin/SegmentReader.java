package penstock.tier;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Reads stored segments in verified chunks, and prefetches across the ends of chunks and of segments. */
final class SegmentReader {
    private static final Logger LOG = LoggerFactory.getLogger(SegmentReader.class);
    private static final int MANIFESTS_MAX = 1000;
    private static final int COPIES_LISTED_MAX = 64; // objects of one offset: several attempts, four objects each

    private final ObjectStore store;
    private final ChunkCache cache;
    private final String root;
    private final int prefetchChunks;
    private final Map<String, Known> manifests = bounded();
    private final Map<String, String> followers = bounded(); // segment → the one after it, or empty

    SegmentReader(ObjectStore store, ChunkCache cache, String root, int prefetchChunks) {
        this.store = store;
        this.cache = cache;
        this.root = root;
        this.prefetchChunks = prefetchChunks;
    }

    InputStream log(RemoteLogSegmentMetadata segment, long start, long end) throws IOException {
        SegmentKeys keys = SegmentKeys.of(root, segment);
        Manifest manifest = manifest(keys, segment);
        return new ChunkStream(segment, keys, manifest, start, Math.min(end, manifest.logBytes() - 1));
    }

    /** An index; {@link NoSuchIndex} if the segment was stored without one of that name. */
    InputStream index(RemoteLogSegmentMetadata segment, String name) throws IOException {
        SegmentKeys keys = SegmentKeys.of(root, segment);
        Manifest manifest = manifest(keys, segment);
        int[] range = manifest.indexes().get(name);
        if (range == null) {
            throw new NoSuchIndex(keys.indexes() + " has no index " + name);
        }
        byte[] all = cache.get(new ChunkCache.Range(keys.indexes(), 0, manifest.indexBytes(), manifest.indexCrc()));
        return new ByteArrayInputStream(all, range[0], range[1]);
    }

    /** The manifest, compared at every use with what Kafka knows of it: a prefetch had nothing to compare with. */
    private Manifest manifest(SegmentKeys keys, RemoteLogSegmentMetadata segment) throws IOException {
        Known known = manifests.get(keys.stem());
        if (known == null) {
            known = remember(keys.stem(), store.readAll(keys.manifest(), Manifest.BYTES_MAX));
        }
        if (segment.customMetadata().isPresent()) {
            byte[] expected = segment.customMetadata().get().value();
            if (expected.length != Manifest.CUSTOM_METADATA_BYTES || expected[0] != Manifest.CUSTOM_METADATA_VERSION) {
                throw new IOException("the custom metadata of " + keys.stem() + " has an unknown version");
            }
            if (ByteBuffer.wrap(expected).getInt(1) != known.crc()) {
                manifests.remove(keys.stem());
                throw new IOException(keys.manifest() + " is damaged: Kafka's metadata has another CRC");
            }
        }
        return known.manifest();
    }

    private Known remember(String stem, byte[] bytes) throws IOException {
        Known known = new Known(Manifest.decode(bytes), Manifest.crc(bytes));
        manifests.put(stem, known);
        return known;
    }

    /** The segment has no transactions, so no index of them. */
    static final class NoSuchIndex extends IOException {
        private static final long serialVersionUID = 1;

        NoSuchIndex(String message) {
            super(message);
        }
    }

    private record Known(Manifest manifest, int crc) {
    }

    private ChunkCache.Range chunk(SegmentKeys keys, Manifest manifest, int chunk) {
        return new ChunkCache.Range(keys.log(), (long) chunk * manifest.chunkBytes(), manifest.bytesOfChunk(chunk),
            manifest.chunkCrcs()[chunk]);
    }

    private void prefetchAfter(RemoteLogSegmentMetadata segment, SegmentKeys keys, Manifest manifest, int chunk) {
        int last = Math.min(chunk + prefetchChunks, manifest.chunkCount() - 1);
        for (int next = chunk + 1; next <= last; next++) {
            cache.prefetch(chunk(keys, manifest, next));
        }
        if (chunk + prefetchChunks >= manifest.chunkCount() && followers.putIfAbsent(keys.stem(), "") == null) {
            cache.inBackground(() -> prefetchFollower(segment, keys));
        }
        String follower = followers.get(keys.stem());
        Known ofFollower = follower == null ? null : manifests.get(follower);
        if (ofFollower != null && chunk + prefetchChunks >= manifest.chunkCount()) {
            cache.prefetch(chunk(new SegmentKeys(follower), ofFollower.manifest(), 0));
        }
    }

    /** Looks up the segment that follows; the store knows it by its offset. */
    private void prefetchFollower(RemoteLogSegmentMetadata segment, SegmentKeys keys) {
        TopicIdPartition place = segment.remoteLogSegmentId().topicIdPartition();
        try {
            List<String> names =
                store.list(SegmentKeys.before(root, place, segment.endOffset() + 1), COPIES_LISTED_MAX);
            for (String name : names) {
                if (name.endsWith(SegmentKeys.MANIFEST)) {
                    SegmentKeys next =
                        new SegmentKeys(name.substring(0, name.length() - SegmentKeys.MANIFEST.length()));
                    if (!names.contains(next.tombstone())) {
                        Manifest manifest = remember(next.stem(), store.readAll(name, Manifest.BYTES_MAX)).manifest();
                        followers.put(keys.stem(), next.stem());
                        cache.prefetch(chunk(next, manifest, 0));
                        return;
                    }
                }
            }
        } catch (IOException | RuntimeException error) {
            LOG.debug("no prefetch after {}", keys.stem(), error); // the reader itself reports what fails
        }
    }

    private static <V> Map<String, V> bounded() {
        return Collections.synchronizedMap(new LinkedHashMap<>(16, 0.75f, true) {
            private static final long serialVersionUID = 1;

            @Override
            protected boolean removeEldestEntry(Map.Entry<String, V> eldest) {
                return size() > MANIFESTS_MAX;
            }
        });
    }

    /** A part of a segment; holds one chunk at a time. */
    private final class ChunkStream extends InputStream {
        private final RemoteLogSegmentMetadata segment;
        private final SegmentKeys keys;
        private final Manifest manifest;
        private final long last; // inclusive
        private long position;
        private byte[] data;
        private int chunk = -1;

        ChunkStream(RemoteLogSegmentMetadata segment, SegmentKeys keys, Manifest manifest, long start, long last) {
            this.segment = segment;
            this.keys = keys;
            this.manifest = manifest;
            this.position = start;
            this.last = last;
        }

        @Override
        public int read() throws IOException {
            byte[] one = new byte[1];
            return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
        }

        @Override
        public int read(byte[] target, int at, int length) throws IOException {
            if (length == 0) {
                return 0;
            }
            if (position > last) {
                return -1;
            }
            int index = (int) (position / manifest.chunkBytes());
            if (index != chunk) {
                data = null; // for the collector, before the next one is read
                data = cache.get(SegmentReader.this.chunk(keys, manifest, index));
                chunk = index;
                prefetchAfter(segment, keys, manifest, index);
            }
            int from = (int) (position % manifest.chunkBytes());
            int part = (int) Math.min(Math.min(length, data.length - from), last + 1 - position);
            System.arraycopy(data, from, target, at, part);
            position += part;
            return part;
        }

        @Override
        public long skip(long count) {
            long skipped = Math.max(0, Math.min(count, last + 1 - position));
            position += skipped;
            return skipped;
        }

        @Override
        public int available() {
            boolean within = data != null && position <= last && position / manifest.chunkBytes() == chunk;
            return within ? (int) Math.min(data.length - position % manifest.chunkBytes(), last + 1 - position) : 0;
        }
    }
}
