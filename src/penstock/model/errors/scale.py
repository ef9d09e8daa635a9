"""65xx: the scaler: trigger metadata, samples, clusters and settings."""

from penstock.model.errors import Exit, NotFoundError, PenstockError, UnavailableError, UsageError


class ScalerMetadataMissing(UsageError):
    code = "PEN-6501"
    text = "{scaled_object}: trigger metadata lacks `{key}`"
    hint = "Add `{key}` under triggers[].metadata of the ScaledObject: {help}"


class ScalerMetadataInvalid(UsageError):
    code = "PEN-6502"
    text = "{scaled_object}: trigger metadata `{key}` is {value!r}, {expected}"
    hint = "Correct the value in the ScaledObject; KEDA calls again by itself."


class ScalerMetadataUnknown(UsageError):
    code = "PEN-6503"
    text = "{scaled_object}: trigger metadata has an unknown key `{key}`{meant}"
    hint = "Known keys: {known}."


class ScalerMetadataConflict(UsageError):
    code = "PEN-6504"
    text = "{scaled_object}: trigger metadata `{key}` = {value!r} conflicts with `{other}` = {other_value!r}"
    hint = "{expected}"


class ScalerClusterUnknown(NotFoundError):
    code = "PEN-6505"
    text = "{scaled_object}: the scaler's settings have no cluster `{cluster}`"
    hint = "Set `cluster` to one of: {known}."


class ScalerMetricUnknown(NotFoundError):
    code = "PEN-6506"
    text = "{scaled_object}: the scaler has no metric `{metric}`"
    hint = "Use the metric that GetMetricSpec returns: `{known}`."


class GroupUnknown(NotFoundError):
    code = "PEN-6507"
    retriable = True
    text = "cluster `{cluster}` has no group `{group}` with offsets in {topics}"
    hint = "Check `group` and `topic`; a group appears when it joins or commits for the first time."


class TopicUnknown(NotFoundError):
    code = "PEN-6508"
    retriable = True
    text = "cluster `{cluster}` has no topic `{topic}`"
    hint = "Check the name in the trigger metadata, or create the topic."


class BrokersUnreachable(UnavailableError):
    code = "PEN-6509"
    text = "cluster `{cluster}`: no sample of group `{group}` for {age:.0f} s: {reason}"
    hint = "Replicas stay as they are until the brokers are reachable again."


class SamplesPending(UnavailableError):
    code = "PEN-6510"
    text = "cluster `{cluster}`: group `{group}` has no sample yet"
    hint = "The first sample takes up to one interval ({interval:.0f} s); replicas stay as they are."


class TraceInvalid(UsageError):
    code = "PEN-6511"
    text = "{path}, line {line}: {reason}"
    hint = "Write a CSV file with the header `second,partition,arrived` or `second,arrived`."


class ScalerSettingsInvalid(UsageError):
    code = "PEN-6512"
    text = "scaler settings: `{key}` is {value!r}, {expected}"
    hint = "See docs/scale.md for the settings file."


class GroupEmpty(UnavailableError):
    code = "PEN-6513"
    text = "cluster `{cluster}`: group `{group}` is {state}, and its replica count is unknown"
    hint = "Start at least one consumer, or set `minReplicas` to 0 to scale from zero."


class SamplerUnavailable(PenstockError):
    code = "PEN-6514"
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "no sample of group `{group}` {since}: {reason}"
    hint = "The sampler process restarts by itself; replicas stay as they are. Its log has the reason."


class GroupNotSampled(UnavailableError):
    code = "PEN-6516"
    text = "cluster `{cluster}`: group `{group}` cannot be sampled: {reason}"
    hint = (
        "Remove the reason; the scaler's account needs the right to describe the group and its topics. "
        "Replicas stay as they are, and other groups are sampled."
    )


class SamplerExited(PenstockError):
    code = "PEN-6515"
    text = "the sampler process is gone: {reason}"
    hint = "Look for the reason in the lines it logged before."
