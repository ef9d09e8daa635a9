import java.lang.reflect.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.metrics.*;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.resource.*;

/** Every method of the admin client, by two tenants at once: what each comes to, a line for each method. */
public class EveryMethod {
    public static void main(String[] arguments) {
        Tenants.both(arguments, (login, topic, group, name) -> new Story(login, topic, group, name).told());
    }

    /** What is called, and what of its result is worth a word. */
    interface Call {
        Object run() throws Exception;
    }

    static final class Story {
        final Map<String, String> said = new LinkedHashMap<>();
        final Admin admin;
        final String topic, group, shared, name, other;
        final TopicPartition partition;

        Story(Tenants.Login login, String topic, String group, String name) {
            Properties properties = login.properties();
            properties.put("default.api.timeout.ms", "40000");
            properties.put("enable.metrics.push", "true");
            admin = Admin.create(properties);
            this.name = name;
            this.topic = topic + "-" + name;
            this.group = group + "-" + name;
            shared = this.group + "-shared";
            other = name.equals("t0") ? "t1" : "t0";
            partition = new TopicPartition(this.topic, 0);
        }

        void call(String method, Call call) {
            String result;
            try {
                result = String.valueOf(call.run());
            } catch (ExecutionException failure) {
                result = failure.getCause().getClass().getSimpleName();
            } catch (Exception failure) {
                result = failure.getClass().getSimpleName();
            }
            said.put(method, result.replace('\n', ' '));
        }

        /** Whether one's own is there and the other tenant's is not. */
        String seen(Collection<String> names, String own) {
            boolean foreign = names.stream().anyMatch(n -> n.endsWith("-" + other) || n.startsWith("lkc-"));
            return names.contains(own) + " " + foreign;
        }

        String told() throws Exception {
            topics();
            settings();
            rules();
            groups();
            shareGroups();
            streamsGroups();
            transactions();
            platform();
            client();
            call("deleteTopics", () -> admin.deleteTopics(List.of(topic)).all().get());
            call("close", () -> { admin.close(Duration.ofSeconds(5)); return null; });
            Set<String> methods = new TreeSet<>();
            for (Method method : Admin.class.getMethods()) {
                if (!Modifier.isStatic(method.getModifiers())) {
                    methods.add(method.getName());
                }
            }
            methods.forEach(method -> said.putIfAbsent(method, "never called"));
            return said.entrySet().stream().map(e -> name + "|" + e.getKey() + "|" + e.getValue()).collect(Collectors.joining("\n"));
        }

        void topics() {
            call("createTopics", () -> admin.createTopics(List.of(new NewTopic(topic, 1, (short) 3))).all().get());
            call("createPartitions", () -> admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(2))).all().get());
            settled();
            call("listTopics", () -> seen(admin.listTopics().names().get(), topic));
            call("describeTopics", () -> admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size());
            call("listOffsets", () -> admin.listOffsets(Map.of(partition, OffsetSpec.latest())).all().get().get(partition).offset());
            call("deleteRecords", () -> admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(0))).all().get());
            call("describeProducers", () -> admin.describeProducers(List.of(partition)).all().get().get(partition).activeProducers().size());
            call("describeLogDirs", () -> seen(admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1).values().stream()
                .flatMap(d -> d.replicaInfos().keySet().stream()).map(TopicPartition::topic).toList(), topic));
            TopicPartitionReplica replica = new TopicPartitionReplica(topic, 0, 1);
            call("describeReplicaLogDirs", () -> admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica).getCurrentReplicaLogDir());
            call("alterReplicaLogDirs", () -> admin.alterReplicaLogDirs(Map.of(replica, "/x")).all().get());
        }

        /** Until every broker knows the topic and has the logs of both its partitions. */
        void settled() {
            for (boolean everywhere = false; !everywhere;) {
                try {
                    List<Integer> brokers = admin.describeCluster().nodes().get().stream().map(Node::id).toList();
                    everywhere = admin.describeLogDirs(brokers).allDescriptions().get().values().stream().allMatch(this::both);
                } catch (Exception notYet) {
                    everywhere = false;
                }
            }
        }

        boolean both(Map<String, LogDirDescription> dirs) {
            return dirs.values().stream().flatMap(d -> d.replicaInfos().keySet().stream()).filter(p -> p.topic().equals(topic)).count() == 2;
        }

        void settings() {
            ConfigResource ours = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
            var change = new AlterConfigOp(new ConfigEntry("retention.ms", "60000"), AlterConfigOp.OpType.SET);
            call("incrementalAlterConfigs", () -> admin.incrementalAlterConfigs(Map.of(ours, List.of(change))).all().get());
            call("describeConfigs", () -> {
                var found = admin.describeConfigs(List.of(ours, broker)).all().get();
                return (found.get(ours).get("retention.ms") != null) + " " + found.get(broker).get("auto.create.topics.enable").value();
            });
            call("listConfigResources", () -> seen(admin.listConfigResources(Set.of(ConfigResource.Type.TOPIC), new ListConfigResourcesOptions())
                .all().get().stream().map(ConfigResource::name).toList(), topic));
            call("listClientMetricsResources", () -> admin.listClientMetricsResources().all().get().size());
        }

        void rules() {
            AclBindingFilter any = AclBindingFilter.ANY;
            call("describeAcls", () -> {
                Collection<AclBinding> found = admin.describeAcls(any).values().get();
                return found.stream().map(a -> a.pattern().name()).distinct().toList() + " "
                    + found.stream().map(a -> a.entry().principal()).distinct().count();
            });
            call("createAcls", () -> {
                String own = admin.describeAcls(any).values().get().iterator().next().entry().principal();
                var pattern = new ResourcePattern(ResourceType.TOPIC, topic, PatternType.LITERAL);
                var entry = new AccessControlEntry(own, "*", AclOperation.READ, AclPermissionType.ALLOW);
                return admin.createAcls(List.of(new AclBinding(pattern, entry))).all().get();
            });
            var filter = new AclBindingFilter(new ResourcePatternFilter(ResourceType.TOPIC, topic, PatternType.LITERAL), AccessControlEntryFilter.ANY);
            call("deleteAcls", () -> {
                Collection<AclBinding> gone = List.of();
                while (gone.isEmpty()) { // rules reach each broker by itself
                    gone = admin.deleteAcls(List.of(filter)).all().get();
                }
                return gone.size();
            });
        }

        void groups() {
            var offsets = Map.of(partition, new OffsetAndMetadata(0));
            call("alterConsumerGroupOffsets", () -> admin.alterConsumerGroupOffsets(group, offsets).all().get());
            call("listConsumerGroupOffsets", () -> admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(partition).offset());
            call("listGroups", () -> seen(admin.listGroups().all().get().stream().map(GroupListing::groupId).toList(), group));
            call("listConsumerGroups", () -> seen(admin.listConsumerGroups().all().get().stream().map(ConsumerGroupListing::groupId).toList(), group));
            call("describeConsumerGroups", () -> admin.describeConsumerGroups(List.of(group)).all().get().get(group).members().size());
            call("describeClassicGroups", () -> admin.describeClassicGroups(List.of(group)).all().get().get(group).members().size());
            call("removeMembersFromConsumerGroup", () -> admin.removeMembersFromConsumerGroup(group,
                new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("nobody")))).all().get());
            call("deleteConsumerGroupOffsets", () -> admin.deleteConsumerGroupOffsets(group, Set.of(partition)).all().get());
            call("deleteConsumerGroups", () -> {
                admin.alterConsumerGroupOffsets(group, offsets).all().get();
                return admin.deleteConsumerGroups(List.of(group)).all().get();
            });
        }

        void shareGroups() {
            call("alterShareGroupOffsets", () -> admin.alterShareGroupOffsets(shared, Map.of(partition, 0L)).all().get());
            call("describeShareGroups", () -> admin.describeShareGroups(List.of(shared)).all().get().get(shared).groupId().equals(shared));
            call("listShareGroupOffsets", () -> admin.listShareGroupOffsets(Map.of(shared, new ListShareGroupOffsetsSpec())).all().get().get(shared).size());
            call("deleteShareGroupOffsets", () -> admin.deleteShareGroupOffsets(shared, Set.of(topic)).all().get());
            call("deleteShareGroups", () -> admin.deleteShareGroups(List.of(shared)).all().get());
        }

        void streamsGroups() {
            call("describeStreamsGroups", () -> admin.describeStreamsGroups(List.of(group)).all().get());
            call("listStreamsGroupOffsets", () -> admin.listStreamsGroupOffsets(Map.of(group, new ListStreamsGroupOffsetsSpec())).all().get().get(group).size());
            call("deleteStreamsGroups", () -> admin.deleteStreamsGroups(List.of(group)).all().get());
            call("deleteStreamsGroupOffsets", () -> admin.deleteStreamsGroupOffsets(group, Set.of(partition)).all().get());
            call("alterStreamsGroupOffsets", () -> admin.alterStreamsGroupOffsets(group, Map.of(partition, new OffsetAndMetadata(0))).all().get());
        }

        void transactions() {
            String writer = "writer-" + name;
            call("fenceProducers", () -> admin.fenceProducers(List.of(writer)).all().get());
            call("listTransactions", () -> seen(admin.listTransactions().all().get().stream().map(TransactionListing::transactionalId).toList(), writer));
            call("describeTransactions", () -> admin.describeTransactions(List.of(writer)).all().get().get(writer).state());
            call("forceTerminateTransaction", () -> admin.forceTerminateTransaction(writer).result().get());
            call("abortTransaction", () -> admin.abortTransaction(new AbortTransactionSpec(partition, 1, (short) 0, 0)).all().get());
        }

        void platform() {
            call("describeCluster", () -> admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true))
                .authorizedOperations().get().stream().map(Enum::name).sorted().toList());
            call("describeFeatures", () -> admin.describeFeatures().featureMetadata().get() != null);
            call("updateFeatures", () -> admin.updateFeatures(Map.of("metadata.version",
                new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE)), new UpdateFeaturesOptions()).all().get());
            call("describeMetadataQuorum", () -> admin.describeMetadataQuorum().quorumInfo().get());
            call("unregisterBroker", () -> admin.unregisterBroker(99).all().get());
            call("electLeaders", () -> admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).all().get());
            call("alterPartitionReassignments", () -> admin.alterPartitionReassignments(
                Map.of(partition, Optional.of(new NewPartitionReassignment(List.of(1))))).all().get());
            call("listPartitionReassignments", () -> admin.listPartitionReassignments().reassignments().get());
            call("describeClientQuotas", () -> admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().size());
            var entity = new ClientQuotaEntity(Map.of("user", "me"));
            var more = new ClientQuotaAlteration(entity, List.of(new ClientQuotaAlteration.Op("producer_byte_rate", 1.0)));
            call("alterClientQuotas", () -> admin.alterClientQuotas(List.of(more)).all().get());
            call("describeUserScramCredentials", () -> admin.describeUserScramCredentials().all().get().size());
            call("alterUserScramCredentials", () -> admin.alterUserScramCredentials(List.of(
                new UserScramCredentialDeletion("me", ScramMechanism.SCRAM_SHA_512))).all().get());
            call("createDelegationToken", () -> admin.createDelegationToken().delegationToken().get());
            call("renewDelegationToken", () -> admin.renewDelegationToken(new byte[] {1}).expiryTimestamp().get());
            call("expireDelegationToken", () -> admin.expireDelegationToken(new byte[] {1}).expiryTimestamp().get());
            call("describeDelegationToken", () -> admin.describeDelegationToken().delegationTokens().get());
            var voter = Set.of(new RaftVoterEndpoint("CONTROLLER", "localhost", 1));
            call("addRaftVoter", () -> admin.addRaftVoter(99, Uuid.randomUuid(), voter).all().get());
            call("removeRaftVoter", () -> admin.removeRaftVoter(99, Uuid.randomUuid()).all().get());
        }

        void client() {
            call("clientInstanceId", () -> admin.clientInstanceId(Duration.ofSeconds(30)) != null);
            call("metrics", () -> !admin.metrics().isEmpty());
            KafkaMetric metric = (KafkaMetric) admin.metrics().values().iterator().next();
            call("registerMetricForSubscription", () -> { admin.registerMetricForSubscription(metric); return null; });
            call("unregisterMetricFromSubscription", () -> { admin.unregisterMetricFromSubscription(metric); return null; });
        }
    }
}
