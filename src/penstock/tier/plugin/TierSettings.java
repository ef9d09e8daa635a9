package penstock.tier;

import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Pattern;
import org.apache.kafka.common.config.ConfigException;

/** The broker properties below `rsm.config.`; an unknown one stops the broker. */
record TierSettings(String store, String prefix, String cluster, long cacheBytes, int prefetchChunks,
                    int readMsMax, Map<String, ?> values) {
    static final String STORE = "store";
    static final String PREFIX = "prefix";
    static final String CLUSTER = "cluster.id";
    static final String DIRECTORY = "file.directory";
    static final String CACHE = "cache.bytes";
    static final String PREFETCH = "prefetch.chunks";
    static final String READ_MS_MAX = "read.timeout.ms";
    static final String S3_BUCKET = "s3.bucket";
    static final String S3_REGION = "s3.region";
    static final String S3_ENDPOINT = "s3.endpoint";
    static final String S3_PATH_STYLE = "s3.path.style";
    static final String S3_CREDENTIALS = "s3.credentials.file";

    static final long CACHE_BYTES_DEFAULT = 32L << 20;
    static final int PREFETCH_CHUNKS_DEFAULT = 2;
    static final int READ_MS_MAX_DEFAULT = 30_000;

    private static final Set<String> KNOWN = Set.of("broker.id", STORE, PREFIX, CLUSTER, DIRECTORY, CACHE, PREFETCH,
        READ_MS_MAX, S3_BUCKET, S3_REGION, S3_ENDPOINT, S3_PATH_STYLE, S3_CREDENTIALS);
    private static final Pattern PREFIX_FORM = Pattern.compile("[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*");

    static TierSettings of(Map<String, ?> configs) {
        Set<String> unknown = new TreeSet<>(configs.keySet());
        unknown.removeAll(KNOWN);
        if (!unknown.isEmpty()) {
            throw new ConfigException("unknown settings of tiered storage: rsm.config." + String.join(", rsm.config.",
                unknown));
        }
        String prefix = text(configs, PREFIX, "tier");
        if (!PREFIX_FORM.matcher(prefix).matches()) {
            throw new ConfigException("rsm.config." + PREFIX, prefix, "expected words separated by /");
        }
        long cacheBytes = number(configs, CACHE, CACHE_BYTES_DEFAULT);
        int prefetch = (int) number(configs, PREFETCH, PREFETCH_CHUNKS_DEFAULT);
        if (cacheBytes < Manifest.CHUNK_BYTES) {
            throw new ConfigException("rsm.config." + CACHE, cacheBytes, "expected at least one chunk of 4 MiB");
        }
        return new TierSettings(text(configs, STORE, null), prefix, text(configs, CLUSTER, null), cacheBytes, prefetch,
            (int) number(configs, READ_MS_MAX, READ_MS_MAX_DEFAULT), configs);
    }

    /** What all keys of this cluster start with. */
    String root() {
        return prefix + "/" + cluster;
    }

    String required(String name) {
        return text(values, name, null);
    }

    String optional(String name) {
        Object value = values.get(name);
        return value == null ? null : value.toString();
    }

    private static String text(Map<String, ?> configs, String name, String fallback) {
        Object value = configs.get(name);
        if (value == null && fallback == null) {
            throw new ConfigException("rsm.config." + name + " is missing");
        }
        return value == null ? fallback : value.toString();
    }

    private static long number(Map<String, ?> configs, String name, long fallback) {
        String value = text(configs, name, Long.toString(fallback));
        try {
            long number = Long.parseLong(value);
            if (number >= 0 && number <= Integer.MAX_VALUE) {
                return number;
            }
        } catch (NumberFormatException error) {
            throw new ConfigException("rsm.config." + name, value, "expected a whole number");
        }
        throw new ConfigException("rsm.config." + name, value, "expected 0 to " + Integer.MAX_VALUE);
    }
}
