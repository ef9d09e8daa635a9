package penstock.tier;

import java.io.EOFException;
import java.io.IOException;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import software.amazon.awssdk.auth.credentials.AwsCredentialsProvider;
import software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider;
import software.amazon.awssdk.auth.credentials.ProfileCredentialsProvider;
import software.amazon.awssdk.awscore.exception.AwsServiceException;
import software.amazon.awssdk.core.checksums.RequestChecksumCalculation;
import software.amazon.awssdk.core.checksums.ResponseChecksumValidation;
import software.amazon.awssdk.core.exception.SdkException;
import software.amazon.awssdk.core.retry.RetryMode;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.http.urlconnection.UrlConnectionHttpClient;
import software.amazon.awssdk.profiles.ProfileFile;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.S3ClientBuilder;
import software.amazon.awssdk.services.s3.model.CompletedPart;
import software.amazon.awssdk.services.s3.model.NoSuchKeyException;
import software.amazon.awssdk.services.s3.model.S3Object;

/**
 * Objects in an S3 bucket. Every object is created with If-None-Match, so that none is overwritten. The SDK
 * repeats failed calls with exponential back-off and jitter; each call has a time limit.
 */
public final class S3Store implements ObjectStore {
    private static final Logger LOG = LoggerFactory.getLogger(S3Store.class);
    static final int PART_BYTES = 5 << 20; // S3's smallest, for a small heap; a segment has at most 2 GiB
    private static final Duration ATTEMPT_MAX = Duration.ofSeconds(20);
    private static final Duration CALL_MAX = Duration.ofSeconds(60);
    private static final Duration CONNECT_MAX = Duration.ofSeconds(5);
    private static final int EXISTS = 412;

    private final S3Client client;
    private final String bucket;

    public S3Store(Map<String, ?> configs) {
        TierSettings settings = TierSettings.of(configs);
        bucket = settings.required(TierSettings.S3_BUCKET);
        S3ClientBuilder builder = S3Client.builder()
            .region(Region.of(settings.required(TierSettings.S3_REGION)))
            .credentialsProvider(credentials(settings.optional(TierSettings.S3_CREDENTIALS)))
            .forcePathStyle(Boolean.parseBoolean(settings.optional(TierSettings.S3_PATH_STYLE)))
            // Ours are checked end to end; other servers know only some of the SDK's.
            .requestChecksumCalculation(RequestChecksumCalculation.WHEN_REQUIRED)
            .responseChecksumValidation(ResponseChecksumValidation.WHEN_REQUIRED)
            .httpClient(UrlConnectionHttpClient.builder()
                .connectionTimeout(CONNECT_MAX).socketTimeout(ATTEMPT_MAX).build())
            .overrideConfiguration(limits -> limits.retryStrategy(RetryMode.STANDARD)
                .apiCallAttemptTimeout(ATTEMPT_MAX).apiCallTimeout(CALL_MAX));
        String endpoint = settings.optional(TierSettings.S3_ENDPOINT);
        if (endpoint != null) {
            builder.endpointOverride(URI.create(endpoint));
        }
        client = builder.build();
    }

    private static AwsCredentialsProvider credentials(String file) {
        if (file == null) {
            return DefaultCredentialsProvider.builder().build();
        }
        ProfileFile profiles =
            ProfileFile.builder().content(Path.of(file)).type(ProfileFile.Type.CREDENTIALS).build();
        return ProfileCredentialsProvider.builder().profileFile(profiles).build();
    }

    @Override
    public Upload begin(String key) {
        return new PartUpload(key);
    }

    @Override
    public boolean create(String key, byte[] content) throws IOException {
        return put(key, content, content.length);
    }

    private boolean put(String key, byte[] content, int length) throws IOException {
        try {
            client.putObject(request -> request.bucket(bucket).key(key).ifNoneMatch("*"),
                RequestBody.fromByteBuffer(ByteBuffer.wrap(content, 0, length)));
            return true;
        } catch (AwsServiceException error) {
            if (error.statusCode() == EXISTS) {
                return false;
            }
            throw failed("put", key, error);
        } catch (SdkException error) {
            throw failed("put", key, error);
        }
    }

    @Override
    public byte[] read(String key, long start, int length) throws IOException {
        if (length == 0) {
            return new byte[0];
        }
        byte[] content = get(key, "bytes=" + start + "-" + (start + length - 1));
        if (content.length != length) {
            throw new EOFException(key + ": " + content.length + " bytes instead of " + length + " at " + start);
        }
        return content;
    }

    @Override
    public byte[] readAll(String key, int bytesMax) throws IOException {
        byte[] content = get(key, "bytes=0-" + bytesMax);
        if (content.length > bytesMax) {
            throw new IOException(key + " has more than " + bytesMax + " bytes");
        }
        return content;
    }

    private byte[] get(String key, String range) throws IOException {
        try {
            return client.getObjectAsBytes(request -> request.bucket(bucket).key(key).range(range))
                .asByteArrayUnsafe();
        } catch (NoSuchKeyException missing) {
            throw new MissingObject(key);
        } catch (SdkException error) {
            throw failed("get", key, error);
        }
    }

    @Override
    public List<String> list(String prefix, int countMax) throws IOException {
        try {
            return client.listObjectsV2(request -> request.bucket(bucket).prefix(prefix).maxKeys(countMax))
                .contents().stream().map(S3Object::key).sorted().toList();
        } catch (SdkException error) {
            throw failed("list", prefix, error);
        }
    }

    @Override
    public void close() {
        client.close();
    }

    private static IOException failed(String call, String key, SdkException error) {
        return new IOException("S3 " + call + " of " + key + " failed: " + error.getMessage(), error);
    }

    /** One part in memory at a time. An object of a single part is a plain put. */
    private final class PartUpload implements Upload {
        private final String key;
        private final byte[] part = new byte[PART_BYTES];
        private final List<CompletedPart> parts = new ArrayList<>();
        private int filled;
        private String id; // of the multipart upload, once there is one

        PartUpload(String key) {
            this.key = key;
        }

        @Override
        public void write(byte[] bytes, int start, int length) throws IOException {
            int at = start;
            int end = start + length;
            while (at < end) {
                if (filled == part.length) {
                    sendPart();
                }
                int count = Math.min(part.length - filled, end - at);
                System.arraycopy(bytes, at, part, filled, count);
                filled += count;
                at += count;
            }
        }

        private void sendPart() throws IOException {
            try {
                if (id == null) {
                    id = client.createMultipartUpload(request -> request.bucket(bucket).key(key)).uploadId();
                }
                int number = parts.size() + 1;
                String tag = client.uploadPart(
                    request -> request.bucket(bucket).key(key).uploadId(id).partNumber(number),
                    RequestBody.fromByteBuffer(ByteBuffer.wrap(part, 0, filled))).eTag();
                parts.add(CompletedPart.builder().partNumber(number).eTag(tag).build());
                filled = 0;
            } catch (SdkException error) {
                throw failed("upload", key, error);
            }
        }

        @Override
        public boolean commit() throws IOException {
            if (id == null) {
                return put(key, part, filled);
            }
            if (filled > 0) {
                sendPart();
            }
            try {
                client.completeMultipartUpload(request -> request.bucket(bucket).key(key).uploadId(id)
                    .ifNoneMatch("*").multipartUpload(all -> all.parts(parts)));
                id = null;
                return true;
            } catch (AwsServiceException error) {
                if (error.statusCode() == EXISTS) {
                    return false;
                }
                throw failed("upload", key, error);
            } catch (SdkException error) {
                throw failed("upload", key, error);
            }
        }

        @Override
        public void close() {
            if (id == null) {
                return;
            }
            try {
                client.abortMultipartUpload(request -> request.bucket(bucket).key(key).uploadId(id));
            } catch (SdkException error) {
                LOG.warn("unfinished upload of {} not removed; the bucket's rule will", key, error);
            }
        }
    }
}
