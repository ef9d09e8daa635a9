package penstock.tier;

/** The attributes of the JMX bean; `fleet/jmx.yaml` exports them. */
public interface TierMetricsMBean {
    long getCopies();

    long getCopyBytes();

    long getCopyFailures();

    int getCopiesBlocked();

    long getGets();

    long getGetBytes();

    long getGetFailures();

    long getCacheHits();

    long getPrefetches();

    long getDamagedReads();

    long getTombstones();
}
