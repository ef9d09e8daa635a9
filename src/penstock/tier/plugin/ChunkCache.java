package penstock.tier;

import java.io.IOException;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.zip.CRC32C;

/**
 * Verified ranges of objects, in a bounded amount of memory. All readers of a range share one GET. What was
 * prefetched and not read yet gives way to readers only, never to another prefetch.
 */
final class ChunkCache implements AutoCloseable {
    /** GETs at once: enough to hide the latency of a store, few enough for a small heap. */
    static final int GETS_MAX = 4;
    private static final int IDLE_SECONDS_MAX = 10;

    /** A range of an object, with the CRC32C of its bytes. */
    record Range(String key, long start, int length, int crc) {
    }

    private static final class Entry {
        final CompletableFuture<byte[]> data = new CompletableFuture<>();
        boolean isRead;
    }

    private final ObjectStore store;
    private final TierMetrics metrics;
    private final long bytesMax;
    private final int waitMsMax;
    private final Map<Range, Entry> entries = new LinkedHashMap<>(16, 0.75f, true); // least recently used first
    private long bytes;
    private final ThreadPoolExecutor readers;

    ChunkCache(ObjectStore store, TierMetrics metrics, long bytesMax, int waitMsMax) {
        this.store = store;
        this.metrics = metrics;
        this.bytesMax = bytesMax;
        this.waitMsMax = waitMsMax;
        this.readers = new ThreadPoolExecutor(GETS_MAX, GETS_MAX, IDLE_SECONDS_MAX, TimeUnit.SECONDS,
            new LinkedBlockingQueue<>(), task -> {
                Thread thread = new Thread(task, "penstock-tier-reader");
                thread.setDaemon(true);
                return thread;
            });
        readers.allowCoreThreadTimeOut(true);
    }

    /** The bytes of a range, which the caller must not change. */
    byte[] get(Range range) throws IOException {
        Entry entry;
        synchronized (this) {
            entry = entries.get(range);
            if (entry == null) {
                makeRoom(range.length(), true);
                entry = load(range);
            } else {
                metrics.cacheHits.increment();
            }
            entry.isRead = true;
        }
        try {
            return entry.data.get(waitMsMax, TimeUnit.MILLISECONDS);
        } catch (ExecutionException failed) {
            if (failed.getCause() instanceof ObjectStore.MissingObject) {
                throw new ObjectStore.MissingObject(range.key());
            }
            throw new IOException(failed.getCause().getMessage(), failed.getCause());
        } catch (TimeoutException slow) {
            throw new IOException(range.key() + " was not read within " + waitMsMax + " ms", slow);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted while reading " + range.key(), interrupted);
        }
    }

    /** Starts to read a range that is likely to be needed soon, if there is room. */
    synchronized void prefetch(Range range) {
        if (!entries.containsKey(range) && makeRoom(range.length(), false)) {
            metrics.prefetches.increment();
            load(range);
        }
    }

    /** Runs a look-up that serves a later prefetch. */
    void inBackground(Runnable task) {
        readers.execute(task);
    }

    private Entry load(Range range) {
        Entry entry = new Entry();
        entries.put(range, entry);
        bytes += range.length();
        readers.execute(() -> {
            try {
                entry.data.complete(verified(range));
            } catch (IOException | RuntimeException | OutOfMemoryError error) {
                metrics.getFailures.increment();
                synchronized (this) { // the next reader tries again
                    if (entries.remove(range, entry)) {
                        bytes -= range.length();
                    }
                }
                entry.data.completeExceptionally(error);
            }
        });
        return entry;
    }

    private byte[] verified(Range range) throws IOException {
        for (int attempt = 0; attempt < 2; attempt++) { // a body may be damaged on its way
            byte[] data = store.read(range.key(), range.start(), range.length());
            metrics.gets.increment();
            metrics.getBytes.add(data.length);
            CRC32C crc = new CRC32C();
            crc.update(data, 0, data.length);
            if ((int) crc.getValue() == range.crc()) {
                return data;
            }
            metrics.damagedReads.increment();
        }
        throw new IOException(range.key() + " is damaged at byte " + range.start() + ": its CRC does not match");
    }

    /** Evicts until {@code length} more bytes fit; a reader gets its range in any case. */
    private boolean makeRoom(int length, boolean forReader) {
        Iterator<Map.Entry<Range, Entry>> oldest = entries.entrySet().iterator();
        while (bytes + length > bytesMax && oldest.hasNext()) {
            Map.Entry<Range, Entry> candidate = oldest.next();
            if (forReader || (candidate.getValue().isRead && candidate.getValue().data.isDone())) {
                bytes -= candidate.getKey().length();
                oldest.remove();
            }
        }
        return bytes + length <= bytesMax;
    }

    @Override
    public void close() {
        readers.shutdownNow();
    }
}
