package penstock.tier;

import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.zip.CRC32C;

/**
 * Checks a segment's batches while its bytes pass: the CRC of each, and that offsets rise within the segment.
 * Computes the batch digest, the SHA-256 over (base offset, last offset, CRC) of each batch.
 */
final class BatchCheck {
    private static final int HEADER_BYTES = 61;
    private static final int PREFIX_BYTES = 12; // base offset and length, not counted in the length
    private static final int MAGIC_AT = 16;
    private static final int CRC_AT = 17;
    private static final int CRC_FROM = 21;
    private static final int LAST_OFFSET_DELTA_AT = 23;
    private static final byte MAGIC = 2;

    private final long startOffset;
    private final long endOffset;
    private final MessageDigest digest = sha256();
    private final ByteBuffer span = ByteBuffer.allocate(20);
    private final ByteBuffer header = ByteBuffer.allocate(HEADER_BYTES);
    private final CRC32C crc = new CRC32C();
    private long lastOffset = -1;
    private long bytesLeft; // of the batch whose header was read

    BatchCheck(long startOffset, long endOffset) {
        this.startOffset = startOffset;
        this.endOffset = endOffset;
    }

    void update(byte[] bytes, int length) throws DamagedSegment {
        int at = 0;
        while (at < length) {
            if (header.hasRemaining()) {
                int part = Math.min(header.remaining(), length - at);
                header.put(bytes, at, part);
                at += part;
                if (!header.hasRemaining()) {
                    beginBatch();
                }
            } else {
                int part = (int) Math.min(bytesLeft, length - at);
                crc.update(bytes, at, part);
                at += part;
                bytesLeft -= part;
            }
            if (!header.hasRemaining() && bytesLeft == 0) {
                endBatch();
            }
        }
    }

    /** The digest of the whole segment, in hexadecimal. */
    String finish() throws DamagedSegment {
        if (header.position() != 0) {
            throw new DamagedSegment("its last batch, after offset " + lastOffset + ", is cut off");
        }
        return HexFormat.of().formatHex(digest.digest());
    }

    private void beginBatch() throws DamagedSegment {
        long base = header.getLong(0);
        long size = (long) header.getInt(8) + PREFIX_BYTES;
        if (header.get(MAGIC_AT) != MAGIC) {
            throw new DamagedSegment("the batch at offset " + base + " has format " + header.get(MAGIC_AT));
        }
        long last = base + header.getInt(LAST_OFFSET_DELTA_AT);
        if (size < HEADER_BYTES || base <= lastOffset || base < startOffset || last < base || last > endOffset) {
            throw new DamagedSegment("the batch at offset " + base + " to " + last + " follows offset " + lastOffset
                + " in a segment of " + startOffset + " to " + endOffset);
        }
        lastOffset = last;
        bytesLeft = size - HEADER_BYTES;
        crc.reset();
        crc.update(header.array(), CRC_FROM, HEADER_BYTES - CRC_FROM);
    }

    private void endBatch() throws DamagedSegment {
        int expected = header.getInt(CRC_AT);
        long base = header.getLong(0);
        if ((int) crc.getValue() != expected) {
            throw new DamagedSegment("the CRC of the batch at offset " + base + " does not match");
        }
        digest.update(span.clear().putLong(base).putLong(lastOffset).putInt(expected).flip());
        header.clear();
    }

    private static MessageDigest sha256() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    /** The segment on disk is not what was written to it. It must not replace intact copies. */
    static final class DamagedSegment extends Exception {
        private static final long serialVersionUID = 1;

        DamagedSegment(String reason) {
            super(reason);
        }
    }
}
