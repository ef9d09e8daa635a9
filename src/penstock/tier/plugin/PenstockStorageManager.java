package penstock.tier;

import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Kafka's tiered storage (KIP-405) on an object store.
 *
 * <p>Every failed copy is a retriable error: after any other exception the broker calls delete on the segment.
 * Delete only writes a tombstone; the data stays until the platform's sweeper removes it.
 */
public final class PenstockStorageManager implements RemoteStorageManager {
    private static final Logger LOG = LoggerFactory.getLogger(PenstockStorageManager.class);
    private static final String S3_STORE = "penstock.tier.S3Store"; // in a separate jar, with Amazon's SDK

    private TierSettings settings;
    private ObjectStore store;
    private TierMetrics metrics;
    private ChunkCache cache;
    private SegmentReader reader;

    @Override
    public void configure(Map<String, ?> configs) {
        settings = TierSettings.of(configs);
        store = open(settings);
        metrics = new TierMetrics();
        cache = new ChunkCache(store, metrics, settings.cacheBytes(), settings.readMsMax());
        reader = new SegmentReader(store, cache, settings.root(), settings.prefetchChunks());
    }

    private static ObjectStore open(TierSettings settings) {
        try {
            switch (settings.store()) {
                case "file":
                    return new FileStore(Path.of(settings.required(TierSettings.DIRECTORY)));
                case "s3":
                    return (ObjectStore) Class.forName(S3_STORE).getConstructor(Map.class)
                        .newInstance(settings.values());
                default:
                    throw new ConfigException("rsm.config.store", settings.store(), "expected file or s3");
            }
        } catch (IOException error) {
            throw new ConfigException("rsm.config.file.directory", settings.optional(TierSettings.DIRECTORY),
                error.toString());
        } catch (InvocationTargetException error) {
            throw new ConfigException("rsm.config.store", settings.store(), String.valueOf(error.getCause()));
        } catch (ReflectiveOperationException | NoClassDefFoundError missing) {
            throw new ConfigException("rsm.config.store", settings.store(),
                "its jars are not on remote.log.storage.manager.class.path: run `penstock tier fetch` (" + missing + ")");
        }
    }

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata segment, LogSegmentData data)
        throws RemoteStorageException {
        TopicIdPartition place = segment.remoteLogSegmentId().topicIdPartition();
        try {
            byte[] manifest = new SegmentCopy(store, settings, segment).run(data);
            metrics.copies.increment();
            metrics.copyBytes.add(segment.segmentSizeInBytes());
            metrics.blocked.remove(place);
            return Optional.of(new CustomMetadata(Manifest.customMetadata(manifest)));
        } catch (BatchCheck.DamagedSegment damaged) {
            metrics.copyFailures.increment();
            metrics.blocked.put(place, damaged.getMessage());
            LOG.error("copy blocked: segment {} of {} is damaged on this broker: {}. It is not uploaded, and stays.",
                segment.startOffset(), place, damaged.getMessage());
            throw new RetriableRemoteStorageException("the segment is damaged: " + damaged.getMessage(), damaged);
        } catch (IOException | RuntimeException | OutOfMemoryError | LinkageError error) {
            // An error would end the broker's copies of this partition until its leader changes.
            metrics.copyFailures.increment();
            throw new RetriableRemoteStorageException("copy of " + place + " at " + segment.startOffset()
                + " failed: " + error.getMessage(), error);
        }
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start) throws RemoteStorageException {
        return fetchLogSegment(segment, start, Integer.MAX_VALUE);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start, int end)
        throws RemoteStorageException {
        if (start < 0 || end < start) {
            throw new IllegalArgumentException("expected 0 <= start <= end, got " + start + " and " + end);
        }
        try {
            return reader.log(segment, start, end);
        } catch (IOException | RuntimeException error) {
            throw readError(segment, error);
        }
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata segment, IndexType type) throws RemoteStorageException {
        try {
            return reader.index(segment, type.name().toLowerCase(Locale.ROOT));
        } catch (SegmentReader.NoSuchIndex absent) {
            throw new RemoteResourceNotFoundException(absent.getMessage(), absent);
        } catch (IOException | RuntimeException error) {
            // Also an object that is missing: the broker would take its transactions for committed.
            throw new RemoteStorageException(message(segment, error), error);
        }
    }

    private static RemoteStorageException readError(RemoteLogSegmentMetadata segment, Exception error) {
        if (error instanceof ObjectStore.MissingObject) {
            return new RemoteResourceNotFoundException(message(segment, error), error);
        }
        return new RemoteStorageException(message(segment, error), error);
    }

    private static String message(RemoteLogSegmentMetadata segment, Exception error) {
        return "read of " + segment.remoteLogSegmentId() + " failed: " + error.getMessage();
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata segment) throws RemoteStorageException {
        String tombstone = String.format("{\"at_ms\":%d,\"format\":1,\"reason\":\"broker\",\"state\":\"%s\"}",
            System.currentTimeMillis(), segment.state());
        SegmentKeys keys = SegmentKeys.of(settings.root(), segment);
        try {
            store.create(keys.tombstone(), tombstone.getBytes(StandardCharsets.UTF_8)); // the first one stays
        } catch (IOException | RuntimeException error) {
            throw new RetriableRemoteStorageException("delete of " + segment.remoteLogSegmentId() + " failed: "
                + error.getMessage(), error);
        }
        metrics.tombstones.increment();
        FaultPoints.reach(FaultPoints.DELETE_TOMBSTONED);
    }

    @Override
    public void close() throws IOException {
        if (store != null) {
            cache.close();
            metrics.close();
            store.close();
        }
    }
}
