"""65xx: the scaler's metadata, its samples and the clusters it looks at."""

from penstock.model.errors import Exit, Fault, PenstockError


class ScalerMetadataMissing(PenstockError):
    code = "PEN-6501"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{scaled_object}: trigger metadata lacks `{key}`"
    hint = "Add `{key}` under triggers[].metadata of the ScaledObject: {help}"


class ScalerMetadataInvalid(PenstockError):
    code = "PEN-6502"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{scaled_object}: trigger metadata `{key}` is {value!r}, {expected}"
    hint = "Correct the value in the ScaledObject; KEDA asks again by itself."


class ScalerMetadataUnknown(PenstockError):
    code = "PEN-6503"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{scaled_object}: trigger metadata has an unknown key `{key}`{meant}"
    hint = "Known keys: {known}."


class ScalerMetadataConflict(PenstockError):
    code = "PEN-6504"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = (
        "{scaled_object}: trigger metadata `{key}` = {value!r} does not go with `{other}` = {other_value!r}"
    )
    hint = "{expected}"


class ScalerClusterUnknown(PenstockError):
    code = "PEN-6505"
    fault = Fault.CALLER
    exit_code = Exit.NOT_FOUND
    text = "{scaled_object}: the scaler knows no cluster `{cluster}`"
    hint = "Clusters in the scaler's settings: {known}."


class ScalerMetricUnknown(PenstockError):
    code = "PEN-6506"
    fault = Fault.CALLER
    exit_code = Exit.NOT_FOUND
    text = "{scaled_object}: no metric `{metric}` here"
    hint = "GetMetricSpec names the metric: `{known}`."


class GroupUnknown(PenstockError):
    code = "PEN-6507"
    fault = Fault.CALLER
    retriable = True
    exit_code = Exit.NOT_FOUND
    text = "cluster `{cluster}` has no group `{group}` with offsets in {topics}"
    hint = "Check `group` and `topic`; a group appears when it joins or commits for the first time."


class TopicUnknown(PenstockError):
    code = "PEN-6508"
    fault = Fault.CALLER
    retriable = True
    exit_code = Exit.NOT_FOUND
    text = "cluster `{cluster}` has no topic `{topic}`"
    hint = "Check the name in the trigger metadata, or create the topic."


class BrokersUnseen(PenstockError):
    code = "PEN-6509"
    fault = Fault.UPSTREAM
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "cluster `{cluster}`: no sample of group `{group}` for {age:.0f} s: {reason}"
    hint = "Replicas stay as they are until the brokers answer again."


class SamplesPending(PenstockError):
    code = "PEN-6510"
    fault = Fault.UPSTREAM
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "cluster `{cluster}`: group `{group}` is watched, its first sample is still to come"
    hint = "The first answer takes one sampling interval ({interval:.0f} s); replicas stay as they are."


class TraceInvalid(PenstockError):
    code = "PEN-6511"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{path}, line {line}: {reason}"
    hint = "A trace is CSV with the header `second,partition,arrived` or `second,arrived`."


class ScalerSettingsInvalid(PenstockError):
    code = "PEN-6512"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "scaler settings: `{key}` is {value!r}, {expected}"
    hint = "See docs/scale.md for the settings file."


class GroupEmpty(PenstockError):
    code = "PEN-6513"
    fault = Fault.UPSTREAM
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "cluster `{cluster}`: group `{group}` is {state}, and no replica count is known to hold"
    hint = "Start at least one consumer, or set `minReplicas` to 0 to scale from zero."


class SamplerDown(PenstockError):
    code = "PEN-6514"
    fault = Fault.OURS
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "no sample of group `{group}` {since}: {reason}"
    hint = "It is started again by itself; replicas stay as they are. Its log says why it ended."


class SamplerGone(PenstockError):
    code = "PEN-6515"
    fault = Fault.OURS
    text = "the sampler's process is gone: {reason}"
    hint = "The lines that it logged before say why."
