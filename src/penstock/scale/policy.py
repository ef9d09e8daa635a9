"""The policy of one ScaledObject, and the one table of its parameters.

Validation, defaults and the table in `docs/scale.md` all come from `PARAMETERS`. Names are
spelled as in a ScaledObject's trigger metadata; where KEDA's kafka scaler has the same notion,
with its spelling.
"""

from __future__ import annotations

import difflib
import hashlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, NamedTuple, cast

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


def _number(
    name: str, field: str, default: float, unit: str, lowest: float, highest: float, text: str
) -> Parameter:
    return Parameter(name, field, "number", default, unit, lowest, highest, (), text)


def _count(name: str, field: str, default: int, unit: str, lowest: int, highest: int, text: str) -> Parameter:
    return Parameter(name, field, "count", default, unit, lowest, highest, (), text)


def _choice(name: str, field: str, choices: tuple[str, ...], text: str) -> Parameter:
    return Parameter(name, field, "choice", choices[0], "", 0, 0, choices, text)


DAY: Final = 86_400
RECORDS_MAX: Final = 10**15
REPLICAS_MAX: Final = 100_000
RATE_SECONDS_MAX: Final = 60.0

PARAMETERS: Final = (
    Parameter("group", "group", "name", None, "", 0, 0, (), "the consumer group (or share group) to follow"),
    Parameter("topic", "topics", "names", (), "", 0, 0, (),
              "one topic, or several with commas; empty: every topic the group has offsets in"),
    Parameter("cluster", "cluster", "name", "default", "", 0, 0, (),
              "name of a cluster in the scaler's settings"),
    _choice("groupType", "group_type", ("consumer", "share"), "what kind of group it is"),
    _number("lagThreshold", "lag_threshold", 500, "records a partition", 0, RECORDS_MAX,
            "lag above this is high; 0: judge by seconds alone"),
    _number("lagSecondsThreshold", "lag_seconds_threshold", 0, "s", 0, DAY,
            "lag older than this is high, too; 0: judge by records alone"),
    _number("lowLagPercent", "low_percent", 50, "% of the threshold", 0, 100,
            "lag at or below this share of the threshold is low; between the two, nothing changes"),
    _number("sustainSeconds", "sustain", 120, "s", 0, DAY,
            "lag must be high this long without a break to scale up"),
    _number("lowSeconds", "low_seconds", 300, "s", 0, DAY,
            "lag must be low this long without a break to scale down"),
    _number("objectiveSeconds", "objective", 120, "s", 1, DAY,
            "the lag objective: scale before the sustain time when waiting would miss it"),
    _number("drainSeconds", "drain", 300, "s", 1, DAY,
            "a backlog that drains within this needs no scaling; new replicas are sized to drain it in this"),
    _number("startSeconds", "start", 90, "s", 0, DAY,
            "from asking for replicas until they consume: HPA sync and pace, pod start, rebalance"),
    _number("warmUpSeconds", "warm_up", 60, "s", 0, DAY, "history needed before the first decision"),
    _number("settleSeconds", "settle", 60, "s", 0, DAY,
            "no decision this long after members changed or a rebalance"),
    _number("scaleUpIntervalSeconds", "up_interval", 120, "s", 0, DAY, "least time between two scale-ups"),
    _number("coolDownSeconds", "cool_down", 600, "s", 0, DAY,
            "no scale-down this long after any change or the first sample"),
    _number("stallSeconds", "stall", 60, "s", 1, DAY,
            "a partition with lag whose position stands still this long is stuck; above a commit interval"),
    _choice("smoothing", "smoothing", ("median", "mean"), "how neighbouring samples are joined"),
    _count("smoothingSamples", "smoothing_samples", 3, "samples", 1, 100, "how many of them"),
    _number("headroomPercent", "headroom", 15, "%", 0, 1000, "spare capacity kept when replicas are counted"),
    _number("relearnSeconds", "relearn", 21_600, "s", 0, 30 * DAY,
            "what a replica handles, measured under backlog, is believed this long; then less is tried"),
    _count("minReplicas", "replicas_min", 1, "replicas", 0, REPLICAS_MAX,
           "as in the ScaledObject; 0 allows scaling to zero"),
    _count("maxReplicas", "replicas_max", 100, "replicas", 1, REPLICAS_MAX, "as in the ScaledObject"),
    _choice("limitTo", "limit_to", ("partitions", "laggingPartitions", "none"),
            "never more replicas than partitions, or than partitions with lag, can use"),
    _count("consumersPerReplica", "consumers_per_replica", 1, "members", 1, 1000,
           "group members in one replica"),
    _number("activationLagThreshold", "activation", 0, "records", 0, RECORDS_MAX,
            "more lag than this wakes a workload that is at zero"),
    _number("idleSeconds", "idle", 300, "s", 0, DAY, "no lag and no arrivals this long is inactive: to zero"),
    _number("hpaTolerancePercent", "tolerance", 10, "%", 0, 100,
            "the HPA ignores changes up to this; set it to the ScaledObject's `tolerance`"),
    _choice("offsetResetPolicy", "reset_policy", ("latest", "earliest"),
            "where a group without a commit begins: latest counts no lag, earliest all that is retained"),
)  # fmt: skip

BY_NAME: Final = {parameter.name: parameter for parameter in PARAMETERS}

# KEDA's own keys of an external trigger: they arrive with the rest and mean nothing here.
FOREIGN: Final = frozenset(
    {"scalerAddress", "enableTLS", "unsafeSsl", "caCert", "tlsClientCert", "tlsClientKey"}
)
FROM_ENVIRONMENT: Final = "FromEnv"  # KEDA resolves these before it calls


@dataclass(frozen=True, slots=True)
class Policy:
    """One ScaledObject's wishes. Seconds are seconds, percentages are fractions."""

    group: str
    topics: tuple[str, ...] = ()
    cluster: str = "default"
    group_type: str = "consumer"
    lag_threshold: float = 500
    lag_seconds_threshold: float = 0
    low_percent: float = 0.5
    sustain: float = 120
    low_seconds: float = 300
    objective: float = 120
    drain: float = 300
    start: float = 90
    warm_up: float = 60
    settle: float = 60
    up_interval: float = 120
    cool_down: float = 600
    stall: float = 60
    smoothing: str = "median"
    smoothing_samples: int = 3
    headroom: float = 0.15
    relearn: float = 21_600
    replicas_min: int = 1
    replicas_max: int = 100
    limit_to: str = "partitions"
    consumers_per_replica: int = 1
    activation: float = 0
    idle: float = 300
    tolerance: float = 0.1
    reset_policy: str = "latest"

    @property
    def rate_seconds(self) -> float:
        """What rates look back on: not past the settle time, so that they are about now's members."""
        return min(RATE_SECONDS_MAX, self.settle or RATE_SECONDS_MAX)

    @property
    def history(self) -> float:
        """Seconds of samples that some rule may look back on."""
        return max(self.sustain, self.low_seconds, self.idle, self.warm_up, self.objective) + 2 * self.settle


def policy_of(metadata: Mapping[str, str], *, scaled_object: str) -> Policy:
    """Trigger metadata to a policy, or an error that names the ScaledObject, the key and the way out."""
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
    """Twelve hexadecimal digits that change when a wish changes, and not with the address."""
    text = "\n".join(f"{key}={metadata[key]}" for key in sorted(metadata) if key not in FOREIGN)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def defaults() -> dict[str, object]:
    """Field defaults of Policy, for the test that keeps them equal to the table's."""
    return {field.name: field.default for field in fields(Policy) if field.name != "group"}


def _known(metadata: Mapping[str, str], scaled_object: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for key, text in metadata.items():
        name = key.removesuffix(FROM_ENVIRONMENT)
        if name == "topics":  # both spellings are in use; the table keeps KEDA's
            name = "topic"
        if key in FOREIGN:
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
    def refuse(
        key: str, value: object, other: str, other_value: object, expected: str
    ) -> ScalerMetadataConflict:
        return ScalerMetadataConflict(
            scaled_object=scaled_object,
            key=key,
            value=value,
            other=other,
            other_value=other_value,
            expected=expected,
        )

    if policy.lag_threshold == 0 and policy.lag_seconds_threshold == 0:
        raise refuse("lagThreshold", 0, "lagSecondsThreshold", 0, "Set at least one of the two above 0.")
    if policy.replicas_min > policy.replicas_max:
        raise refuse(
            "minReplicas",
            policy.replicas_min,
            "maxReplicas",
            policy.replicas_max,
            "minReplicas must not be larger.",
        )
    if policy.lag_seconds_threshold > policy.objective:
        raise refuse(
            "lagSecondsThreshold", policy.lag_seconds_threshold, "objectiveSeconds", policy.objective,
            "The threshold in seconds must lie at or below the objective.",
        )  # fmt: skip
    if policy.group_type == "share" and not policy.topics:
        raise refuse(
            "groupType", "share", "topic", "", "A share group's lag is asked for by topic: name them."
        )
