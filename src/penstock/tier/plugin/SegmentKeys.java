package penstock.tier;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;

/** The names of a segment's objects. */
record SegmentKeys(String stem) {
    static final String MANIFEST = ".json";

    static SegmentKeys of(String root, RemoteLogSegmentMetadata segment) {
        TopicIdPartition place = segment.remoteLogSegmentId().topicIdPartition();
        return new SegmentKeys(before(root, place, segment.startOffset()) + segment.remoteLogSegmentId().id());
    }

    /** What the keys of all copies of the segment at an offset start with. */
    static String before(String root, TopicIdPartition place, long baseOffset) {
        return String.format("%s/%s/%d/%020d-", root, place.topicId(), place.partition(), baseOffset);
    }

    String log() {
        return stem + ".log";
    }

    String indexes() {
        return stem + ".idx";
    }

    String manifest() {
        return stem + MANIFEST;
    }

    String tombstone() {
        return stem + ".gone";
    }
}
