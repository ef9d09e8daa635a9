// Confluent's parallel consumer as a peer of bench.consume, in one JVM that stays warm.
//
// Reads one job per line from standard input: topic, order, workers, work in microseconds (or "random":
// 0 to 5 ms, or "stamp": 1 ms, with the intended send time as value), expected records.
// Prints one line: wall nanoseconds from the first record handled to the last, processor
// nanoseconds of the JVM meanwhile, records handled, and the median and p99 of latency in
// microseconds. Settings are those its documentation recommends: asynchronous commits, order by key
// by default, maxConcurrency = workers.

import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public final class Peer {
  public static void main(String[] arguments) throws Exception {
    Properties connection = new Properties();
    try (FileInputStream file = new FileInputStream(arguments[0])) {
      connection.load(file);
    }
    BufferedReader jobs = new BufferedReader(new InputStreamReader(System.in));
    for (String line = jobs.readLine(); line != null; line = jobs.readLine()) {
      System.out.println(run(connection, line.trim().split(" ")));
      System.out.flush();
    }
  }

  private static String run(Properties connection, String[] job) throws Exception {
    String topic = job[0];
    ProcessingOrder order = ProcessingOrder.valueOf(job[1]);
    int workers = Integer.parseInt(job[2]);
    String work = job[3];
    long expected = Long.parseLong(job[4]);

    Properties properties = new Properties();
    properties.putAll(connection);
    properties.put("group.id", "peer-" + UUID.randomUUID());
    properties.put("auto.offset.reset", "earliest");
    properties.put("enable.auto.commit", "false");
    KafkaConsumer<byte[], byte[]> consumer =
        new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    ParallelStreamProcessor<byte[], byte[]> processor =
        ParallelStreamProcessor.createEosStreamProcessor(
            ParallelConsumerOptions.<byte[], byte[]>builder()
                .consumer(consumer)
                .ordering(order)
                .maxConcurrency(workers)
                .commitMode(CommitMode.PERIODIC_CONSUMER_ASYNCHRONOUS)
                .build());
    AtomicLong handled = new AtomicLong();
    AtomicLong first = new AtomicLong();
    AtomicLong processor0 = new AtomicLong();
    AtomicLong last = new AtomicLong();
    ConcurrentLinkedQueue<Long> latencies = new ConcurrentLinkedQueue<>();
    CountDownLatch done = new CountDownLatch(1);
    processor.subscribe(List.of(topic));
    processor.poll(
        context -> {
          if (first.get() == 0 && first.compareAndSet(0, System.nanoTime())) {
            processor0.set(processorNanos());
          }
          pause(work);
          if (work.equals("stamp")) {
            Instant now = Instant.now();
            long micros = now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000;
            latencies.add(micros - Long.parseLong(new String(context.getSingleConsumerRecord().value())));
          }
          if (handled.incrementAndGet() == expected) {
            last.set(System.nanoTime());
            done.countDown();
          }
        });
    boolean complete = done.await(300, TimeUnit.SECONDS);
    long used = processorNanos() - processor0.get();
    long wall = (complete ? last.get() : System.nanoTime()) - first.get();
    processor.closeDontDrainFirst();
    List<Long> all = new ArrayList<>(latencies.isEmpty() ? List.of(0L) : latencies);
    List<Long> ranked = all.subList(all.size() / 5, all.size()); // without the time to join the group
    Collections.sort(ranked);
    long p99 = ranked.get(Math.min(ranked.size() - 1, ranked.size() * 99 / 100));
    return wall + " " + used + " " + handled.get() + " " + ranked.get(ranked.size() / 2) + " " + p99;
  }

  private static void pause(String work) {
    long nanos =
        work.equals("random")
            ? ThreadLocalRandom.current().nextLong(5_000_000)
            : work.equals("stamp") ? 1_000_000 : Long.parseLong(work) * 1_000;
    long deadline = System.nanoTime() + nanos;
    for (long left = nanos; left > 0; left = deadline - System.nanoTime()) {
      LockSupport.parkNanos(left);
    }
  }

  private static long processorNanos() {
    return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
        .getProcessCpuTime();
  }
}
