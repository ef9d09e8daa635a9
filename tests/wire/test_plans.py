"""Plans: where names are, in every API, version and direction."""

from __future__ import annotations

import pytest

from penstock.model.errors.plans import PlanUnknown
from penstock.wire.definitions import load
from penstock.wire.field_rules import Kind
from penstock.wire.plans import Direction, OpCode, plan, surface, surface_table

REQUEST, RESPONSE = Direction.REQUEST, Direction.RESPONSE


def kind_at(api_key: int, version: int, direction: Direction, path: str) -> Kind:
    ops = [op for op in plan(api_key, version, direction).ops if f".{op.path}".endswith(f".{path}")]
    return ops[-1].kind if ops[-1].code is not OpCode.END else ops[-2].kind


def test_every_api_version_and_direction_has_a_plan() -> None:
    definitions = load()
    versions = {
        (key, version, direction)
        for key, api in definitions.apis().items()
        for direction in Direction
        for version in definitions.message(api + direction.capitalize()).valid_versions
    }

    plans = list(surface(definitions))

    assert {(each.api_key, each.version, each.direction) for each in plans} == versions
    assert len(plans) == len(versions)


def test_only_messages_with_records_are_streamed() -> None:
    streaming = {each.message for each in surface(load()) if each.streams}

    assert streaming == {"ProduceRequest", "FetchResponse", "ShareFetchResponse", "FetchSnapshotResponse"}


@pytest.mark.parametrize(
    ("api_key", "version", "direction", "path", "kind"),
    [
        (10, 2, REQUEST, "Key", Kind.COORDINATOR_KEY),
        (10, 6, REQUEST, "CoordinatorKeys", Kind.COORDINATOR_KEY),
        (10, 6, RESPONSE, "Coordinators.Key", Kind.COORDINATOR_KEY),
        (32, 4, REQUEST, "Resources.ResourceName", Kind.CONFIG_RESOURCE),
        (33, 2, RESPONSE, "Responses.ResourceName", Kind.CONFIG_RESOURCE),
        (44, 1, REQUEST, "Resources.ResourceName", Kind.CONFIG_RESOURCE),
        (74, 1, RESPONSE, "ConfigResources.ResourceName", Kind.CONFIG_RESOURCE),
        (30, 3, REQUEST, "Creations.ResourceName", Kind.ACL_RESOURCE),
        (30, 3, REQUEST, "Creations.Principal", Kind.PRINCIPAL),
        (29, 3, REQUEST, "ResourceNameFilter", Kind.ACL_RESOURCE),
        (31, 3, RESPONSE, "MatchingAcls.ResourceName", Kind.ACL_RESOURCE),
        (68, 1, REQUEST, "SubscribedTopicRegex", Kind.TOPIC_REGEX),
        (69, 1, RESPONSE, "SubscribedTopicRegex", Kind.TOPIC_REGEX),
        (88, 0, REQUEST, "Subtopologies.SourceTopicRegex", Kind.TOPIC_REGEX),
        (66, 2, REQUEST, "TransactionalIdPattern", Kind.TRANSACTIONAL_ID_REGEX),
        (11, 9, REQUEST, "Protocols.Metadata", Kind.SUBSCRIPTION),
        (11, 9, RESPONSE, "Members.Metadata", Kind.SUBSCRIPTION),
        (14, 5, REQUEST, "Assignments.Assignment", Kind.ASSIGNMENT),
        (14, 5, RESPONSE, "SyncGroupResponse.Assignment", Kind.ASSIGNMENT),
        (15, 6, RESPONSE, "Members.MemberMetadata", Kind.SUBSCRIPTION),
        (15, 6, RESPONSE, "Members.MemberAssignment", Kind.ASSIGNMENT),
        (48, 1, REQUEST, "Components.Match", Kind.QUOTA_ENTITY),
        (49, 1, REQUEST, "Entity.EntityName", Kind.QUOTA_ENTITY),
        (50, 0, REQUEST, "Users.Name", Kind.USER),
        (3, 13, RESPONSE, "ClusterId", Kind.CLUSTER_ID),
        (60, 2, RESPONSE, "ClusterId", Kind.CLUSTER_ID),
        (83, 0, REQUEST, "GroupId", Kind.GROUP),
        (75, 0, REQUEST, "Cursor.TopicName", Kind.TOPIC),
        (75, 0, RESPONSE, "NextCursor.TopicName", Kind.TOPIC),
        (69, 1, RESPONSE, "TargetAssignment.TopicPartitions.TopicName", Kind.TOPIC),
        (0, 12, RESPONSE, "BatchIndexErrorMessage", Kind.TEXT),
        (88, 0, RESPONSE, "Status.StatusDetail", Kind.TEXT),
        (1, 17, RESPONSE, "NodeEndpoints.NodeId", Kind.ENDPOINT),
        (10, 3, RESPONSE, "NodeId", Kind.ENDPOINT),
        (1, 14, REQUEST, "FetchRequest.ReplicaId", Kind.REPLICA_ID),
        (3, 12, RESPONSE, "Topics.TopicAuthorizedOperations", Kind.OPERATIONS),
        (88, 0, REQUEST, "UserEndpoint.Host", Kind.PLAIN),
        (30, 3, REQUEST, "Creations.Host", Kind.PLAIN),
    ],
)
def test_names_that_kafka_does_not_mark_have_a_kind(
    api_key: int, version: int, direction: Direction, path: str, kind: Kind
) -> None:
    assert kind_at(api_key, version, direction, path) is kind


@pytest.mark.parametrize(("api_key", "version"), [(0, 2), (0, 14), (999, 0), (7, 0)])
def test_an_api_or_version_that_is_not_defined_has_no_plan(api_key: int, version: int) -> None:
    with pytest.raises(PlanUnknown):
        plan(api_key, version, REQUEST)


def test_a_listing_shows_one_op_per_line() -> None:
    listing = plan(0, 9, REQUEST).listing()

    assert listing == (
        "ProduceRequest v9 flexible\n"
        "  sized string TransactionalId nullable ← transactional_id\n"
        "  fixed h Acks\n"
        "  fixed i TimeoutMs\n"
        "  array TopicData\n"
        "    sized string Name ← topic\n"
        "    array PartitionData\n"
        "      fixed i Index\n"
        "      sized records Records nullable ← records\n"
        "      tags\n"
        "    tags\n"
        "  tags"
    )


def test_the_surface_table_has_every_api_in_both_directions() -> None:
    rows = surface_table(load())

    assert {(key, direction) for key, _, _, direction, _ in rows} == {
        (key, direction) for key in load().apis() for direction in Direction
    }
    assert (0, "Produce", "13", REQUEST, (Kind.RECORDS, Kind.TOPIC_ID, Kind.TRANSACTIONAL_ID)) in rows
