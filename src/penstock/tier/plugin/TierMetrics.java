package penstock.tier;

import java.lang.management.ManagementFactory;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.LongAdder;
import javax.management.JMException;
import javax.management.ObjectName;
import org.apache.kafka.common.TopicIdPartition;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Counters of this broker's tiering, as one JMX bean. */
final class TierMetrics implements TierMetricsMBean, AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(TierMetrics.class);
    private static final String NAME = "penstock.tier:type=Tier";

    final LongAdder copies = new LongAdder();
    final LongAdder copyBytes = new LongAdder();
    final LongAdder copyFailures = new LongAdder();
    final LongAdder gets = new LongAdder();
    final LongAdder getBytes = new LongAdder();
    final LongAdder getFailures = new LongAdder();
    final LongAdder cacheHits = new LongAdder();
    final LongAdder prefetches = new LongAdder();
    final LongAdder damagedReads = new LongAdder();
    final LongAdder tombstones = new LongAdder();
    final Map<TopicIdPartition, String> blocked = new ConcurrentHashMap<>();

    TierMetrics() {
        try {
            ObjectName name = new ObjectName(NAME);
            if (ManagementFactory.getPlatformMBeanServer().isRegistered(name)) { // by a test that closed nothing
                ManagementFactory.getPlatformMBeanServer().unregisterMBean(name);
            }
            ManagementFactory.getPlatformMBeanServer().registerMBean(this, name);
        } catch (JMException error) {
            LOG.warn("metrics of tiered storage not registered", error);
        }
    }

    @Override
    public void close() {
        try {
            ManagementFactory.getPlatformMBeanServer().unregisterMBean(new ObjectName(NAME));
        } catch (JMException error) {
            LOG.warn("metrics of tiered storage not removed", error);
        }
    }

    @Override
    public long getCopies() {
        return copies.sum();
    }

    @Override
    public long getCopyBytes() {
        return copyBytes.sum();
    }

    @Override
    public long getCopyFailures() {
        return copyFailures.sum();
    }

    @Override
    public int getCopiesBlocked() {
        return blocked.size();
    }

    @Override
    public long getGets() {
        return gets.sum();
    }

    @Override
    public long getGetBytes() {
        return getBytes.sum();
    }

    @Override
    public long getGetFailures() {
        return getFailures.sum();
    }

    @Override
    public long getCacheHits() {
        return cacheHits.sum();
    }

    @Override
    public long getPrefetches() {
        return prefetches.sum();
    }

    @Override
    public long getDamagedReads() {
        return damagedReads.sum();
    }

    @Override
    public long getTombstones() {
        return tombstones.sum();
    }
}
