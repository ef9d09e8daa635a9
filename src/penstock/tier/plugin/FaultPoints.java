package penstock.tier;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Places where a test ends the broker at once, as kill -9 would. {@code PENSTOCK_FAULT=tier.copy.data@3} ends it
 * at the third arrival; several are separated by commas. Points of other processes are ignored.
 */
final class FaultPoints {
    static final String COPY_BEGUN = "tier.copy.begun";
    static final String COPY_DATA = "tier.copy.data";
    static final String COPY_INDEXES = "tier.copy.indexes";
    static final String COPY_MANIFEST = "tier.copy.manifest";
    static final String DELETE_TOMBSTONED = "tier.delete.tombstoned";

    static final int EXIT_CODE = 137; // as a shell reports kill -9

    private static final Map<String, AtomicInteger> ARMED = parse(System.getenv("PENSTOCK_FAULT"));

    private FaultPoints() {
    }

    static void reach(String point) {
        AtomicInteger left = ARMED.get(point);
        if (left != null && left.decrementAndGet() == 0) {
            Runtime.getRuntime().halt(EXIT_CODE);
        }
    }

    private static Map<String, AtomicInteger> parse(String setting) {
        Map<String, AtomicInteger> armed = new HashMap<>();
        for (String item : setting == null ? new String[0] : setting.split(",")) {
            String[] parts = item.trim().split("!")[0].split("@");
            armed.put(parts[0], new AtomicInteger(parts.length > 1 ? Integer.parseInt(parts[1]) : 1));
        }
        return armed;
    }
}
