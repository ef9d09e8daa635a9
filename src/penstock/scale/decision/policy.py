"""The policy of one ScaledObject, and the table of its parameters.

Validation, defaults and the table in `docs/scale.md` all come from the fields of `Policy`. The first
argument of each is its name in the trigger metadata, spelled as in KEDA's kafka scaler if that has it.
"""

from __future__ import annotations

import difflib
import hashlib
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from penstock.model.errors.scale import (
    ScalerMetadataConflict,
    ScalerMetadataInvalid,
    ScalerMetadataMissing,
    ScalerMetadataUnknown,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Value = str | int | float | tuple[str, ...]


class Parameter(NamedTuple):
    name: str  # in the metadata
    field: str  # in Policy
    kind: str  # name | names | count | number | choice
    default: Value | None  # None: required
    unit: str
    lowest: float
    highest: float
    choices: tuple[str, ...]
    help: str


DAY: Final = 86_400
RECORDS_MAX: Final = 10**15
REPLICAS_MAX: Final = 100_000
RATE_SECONDS_MAX: Final = 60.0


def _parameter(
    name: str, kind: str, default: Value | None, text: str, unit: str = "", lowest: float = 0,
    highest: float = 0, choices: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    """A field of Policy with its parameter; a percentage becomes a fraction."""
    value = cast("float", default) / 100 if unit.startswith("%") else default
    metadata = {"parameter": (name, kind, default, unit, lowest, highest, choices, text)}
    return field(metadata=metadata) if default is None else field(default=value, metadata=metadata)


def _number(name: str, default: float, unit: str, lowest: float, highest: float, text: str) -> Any:
    return _parameter(name, "number", default, text, unit, lowest, highest)


def _count(name: str, default: int, unit: str, lowest: int, highest: int, text: str) -> Any:
    return _parameter(name, "count", default, text, unit, lowest, highest)


def _choice(name: str, choices: tuple[str, ...], text: str) -> Any:
    return _parameter(name, "choice", choices[0], text, choices=choices)


# Keys that KEDA itself reads from an external trigger; it passes them on with the rest.
KEDA_KEYS: Final = frozenset(
    {"scalerAddress", "enableTLS", "unsafeSsl", "caCert", "tlsClientCert", "tlsClientKey"}
)
FROM_ENVIRONMENT: Final = "FromEnv"  # suffix of keys whose values KEDA resolves before it calls


@dataclass(frozen=True, slots=True)
class Policy:
    """The parameters of one ScaledObject. Times are in seconds, percentages are fractions."""

    # fmt: off
    group: str = _parameter("group", "name", None, "the consumer group (or share group) to follow")
    topics: tuple[str, ...] = _parameter("topic", "names", (),
        "one topic, or several with commas; empty: every topic the group has offsets in")
    cluster: str = _parameter("cluster", "name", "default", "name of a cluster in the scaler's settings")
    group_type: str = _choice("groupType", ("consumer", "share"), "what kind of group it is")
    lag_threshold: float = _number("lagThreshold", 500, "records a partition", 0, RECORDS_MAX,
        "lag above this is high; 0: use lagSecondsThreshold alone")
    lag_seconds_threshold: float = _number("lagSecondsThreshold", 0, "s", 0, DAY,
        "lag older than this is high, too; 0: use lagThreshold alone")
    low_percent: float = _number("lowLagPercent", 50, "% of the threshold", 0, 100,
        "lag at or below this share of the threshold is low; between the two nothing changes")
    sustain: float = _number("sustainSeconds", 120, "s", 0, DAY,
        "lag must be high this long without a break to scale up")
    low_seconds: float = _number("lowSeconds", 300, "s", 0, DAY,
        "lag must be low this long without a break to scale down")
    objective: float = _number("objectiveSeconds", 120, "s", 1, DAY,
        "the lag objective: scale up before the sustain time ends if waiting would miss it")
    drain: float = _number("drainSeconds", 300, "s", 1, DAY,
        "a backlog that drains within this needs no scaling; new replicas are sized to drain it in this")
    start: float = _number("startSeconds", 90, "s", 0, DAY,
        "time from a request until new replicas consume: HPA sync, pod start, rebalance")
    warm_up: float = _number("warmUpSeconds", 60, "s", 0, DAY, "history needed before the first decision")
    settle: float = _number("settleSeconds", 60, "s", 0, DAY,
        "no decision this long after a change of members or a rebalance")
    up_interval: float = _number("scaleUpIntervalSeconds", 120, "s", 0, DAY,
        "minimum time between two scale-ups")
    cool_down: float = _number("coolDownSeconds", 600, "s", 0, DAY,
        "no scale-down this long after any change or the first sample")
    stall: float = _number("stallSeconds", 60, "s", 1, DAY,
        "a partition with lag that does not move this long is stuck; set it above the commit interval")
    smoothing: str = _choice("smoothing", ("median", "mean"), "how neighbouring samples are combined")
    smoothing_samples: int = _count("smoothingSamples", 3, "samples", 1, 100, "how many samples are combined")
    headroom: float = _number("headroomPercent", 15, "%", 0, 1000,
        "spare capacity added to the load when sizing replicas")
    relearn: float = _number("relearnSeconds", 21_600, "s", 0, 30 * DAY,
        "how long a measured capacity is valid; after that, scaling down is tried step by step")
    replicas_min: int = _count("minReplicas", 1, "replicas", 0, REPLICAS_MAX,
        "as in the ScaledObject; 0 allows scaling to zero")
    replicas_max: int = _count("maxReplicas", 100, "replicas", 1, REPLICAS_MAX, "as in the ScaledObject")
    limit_to: str = _choice("limitTo", ("partitions", "laggingPartitions", "none"),
        "never more replicas than partitions, or partitions with lag, can use")
    consumers_per_replica: int = _count("consumersPerReplica", 1, "members", 1, 1000,
        "group members in one replica")
    activation: float = _number("activationLagThreshold", 0, "records", 0, RECORDS_MAX,
        "more lag than this activates a workload at zero replicas")
    idle: float = _number("idleSeconds", 300, "s", 0, DAY,
        "without lag and arrivals this long, the workload is inactive and may go to zero")
    tolerance: float = _number("hpaTolerancePercent", 10, "%", 0, 100,
        "the HPA ignores changes up to this; set it to the ScaledObject's `tolerance`")
    reset_policy: str = _choice("offsetResetPolicy", ("latest", "earliest"),
        "where a group without a commit starts: latest counts no lag but activates, earliest all "
        "retained records")
    # fmt: on

    @property
    def rate_seconds(self) -> float:
        """The span of rates: at most the settle time, so that they cover the current members only."""
        return min(RATE_SECONDS_MAX, self.settle or RATE_SECONDS_MAX)

    @property
    def history(self) -> float:
        """Seconds of samples that the rules need."""
        return max(self.sustain, self.low_seconds, self.idle, self.warm_up, self.objective) + 2 * self.settle


PARAMETERS: Final = tuple(
    Parameter(name, each.name, *others)
    for each in fields(Policy)
    for name, *others in (each.metadata["parameter"],)
)
BY_NAME: Final = {parameter.name: parameter for parameter in PARAMETERS}


def policy_of(metadata: Mapping[str, str], *, scaled_object: str) -> Policy:
    """Parses trigger metadata; errors name the ScaledObject, the key and what was expected."""
    given = _known(metadata, scaled_object)
    values: dict[str, object] = {}
    for parameter in PARAMETERS:
        text = given.get(parameter.name)
        if text is None or text == "":
            if parameter.default is None:
                raise ScalerMetadataMissing(
                    scaled_object=scaled_object, key=parameter.name, help=parameter.help
                )
            continue
        value = _value(parameter, text, scaled_object)
        values[parameter.field] = cast("float", value) / 100 if parameter.unit.startswith("%") else value
    policy = Policy(**values)  # type: ignore[arg-type]  # each field was parsed by its parameter's kind
    _check_together(policy, scaled_object)
    return policy


def metadata_hash(metadata: Mapping[str, str]) -> str:
    """Twelve hexadecimal digits that change with the parameters, but not with the scaler's address."""
    text = "\n".join(f"{key}={metadata[key]}" for key in sorted(metadata) if key not in KEDA_KEYS)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _known(metadata: Mapping[str, str], scaled_object: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for key, text in metadata.items():
        name = key.removesuffix(FROM_ENVIRONMENT)
        if name == "topics":  # both spellings are in use; the table has KEDA's
            name = "topic"
        if key in KEDA_KEYS:
            continue
        if name not in BY_NAME:
            near = difflib.get_close_matches(name, BY_NAME, n=1)
            meant = f", did you mean `{near[0]}`?" if near else ""
            known = ", ".join(BY_NAME)
            raise ScalerMetadataUnknown(scaled_object=scaled_object, key=key, meant=meant, known=known)
        given[name] = text.strip()
    return given


def _value(parameter: Parameter, text: str, scaled_object: str) -> Value:
    def refuse(expected: str) -> ScalerMetadataInvalid:
        return ScalerMetadataInvalid(
            scaled_object=scaled_object, key=parameter.name, value=text, expected=expected
        )

    if parameter.kind == "name":
        return text
    if parameter.kind == "names":
        names = tuple(name.strip() for name in text.split(","))
        if not all(names) or len(set(names)) != len(names):
            raise refuse("expected names with commas between them, each once")
        return names
    if parameter.kind == "choice":
        if text not in parameter.choices:
            raise refuse("expected one of " + ", ".join(parameter.choices))
        return text
    span = f"from {parameter.lowest:g} to {parameter.highest:g}"
    whole = parameter.kind == "count"
    try:
        number = int(text) if whole else float(text)
    except ValueError:
        raise refuse(f"expected a {'whole ' if whole else ''}number {span}") from None
    if not parameter.lowest <= number <= parameter.highest:  # also refuses nan
        raise refuse(f"expected {span}{' ' + parameter.unit if parameter.unit else ''}")
    return number


def _check_together(policy: Policy, scaled_object: str) -> None:
    def refuse(key: str, value: object, other: str, limit: object, expected: str) -> ScalerMetadataConflict:
        facts = {"key": key, "value": value, "other": other, "other_value": limit, "expected": expected}
        return ScalerMetadataConflict(scaled_object=scaled_object, **facts)

    if policy.lag_threshold == 0 and policy.lag_seconds_threshold == 0:
        raise refuse("lagThreshold", 0, "lagSecondsThreshold", 0, "Set at least one of the two above 0.")
    least, most = policy.replicas_min, policy.replicas_max
    if least > most:
        raise refuse("minReplicas", least, "maxReplicas", most, "minReplicas must not be larger.")
    if policy.lag_seconds_threshold > policy.objective:
        raise refuse(
            "lagSecondsThreshold", policy.lag_seconds_threshold, "objectiveSeconds", policy.objective,
            "The threshold in seconds must not exceed the objective.",
        )  # fmt: skip
    if policy.group_type == "share" and not policy.topics:
        raise refuse("groupType", "share", "topic", "", "Name the topics of a share group.")
