"""60xx: the parallel consumer: invalid options, handler failures, refusals by Kafka."""

from penstock.model.errors import CallerError, DeniedError, PenstockError, UpstreamError, UsageError


class ConsumeError(PenstockError):
    """The root of this area; not an entry of the catalogue."""


class OptionUnknown(ConsumeError, UsageError):
    code = "PEN-6001"
    text = "ParallelConsumer has no option `{option}`"
    hint = "Did you mean {similar}? Pass properties of the Kafka client in the first argument, a mapping."


class OptionInvalid(ConsumeError, UsageError):
    code = "PEN-6002"
    text = "option `{option}` is {value!r}, {expected}"
    hint = "Correct the option where you create the ParallelConsumer."


class GroupMissing(ConsumeError, UsageError):
    code = "PEN-6003"
    text = "`group.id` is missing or empty, and offsets are committed for a group"
    hint = 'Add "group.id": "<name>" to the Kafka properties; members of one group share the partitions.'


class GroupRefused(ConsumeError, DeniedError):
    code = "PEN-6004"
    text = "Kafka refuses this member in group `{group}`: {reason}"
    hint = (
        "Check that the group's name is valid, that all members use the same group.protocol and "
        "partition.assignment.strategy, and that your Kafka user has READ on the group."
    )


class HandlerMissing(ConsumeError, UsageError):
    code = "PEN-6005"
    text = "the consumer of {topics} has no handler"
    hint = "Decorate a function with @consumer.handler before run()."


class HandlerUnusable(ConsumeError, UsageError):
    code = "PEN-6006"
    text = "{handler} is not a usable handler: {reason}"
    hint = "A handler is a function or coroutine function of one record; a batch handler gets a list."


class ClientRefused(ConsumeError, UsageError):
    code = "PEN-6007"
    text = "the Kafka client rejects these properties: {reason}"
    hint = "Use librdkafka's property names; see its CONFIGURATION.md."


class AccessDenied(ConsumeError, DeniedError):
    code = "PEN-6008"
    text = "Kafka denies access: {reason}"
    hint = "Grant your Kafka user READ on the topics and the group, and WRITE on the output topics."


class ResultInvalid(ConsumeError, CallerError):
    code = "PEN-6020"
    text = "the handler returned {result} for {record}: expected None, an Output or a list of Outputs"
    hint = "Return penstock.consume.Output(topic, value, key=…) for each record to write, or None."


class HandlerTimedOut(ConsumeError, CallerError):
    code = "PEN-6021"
    retriable = True
    text = "the handler did not finish {record} within {seconds:g} s"
    hint = "Raise handler_seconds_max, or set time limits on what the handler waits for."


class HandlerFailed(ConsumeError, CallerError):
    code = "PEN-6022"
    retriable = True
    text = "{record} failed after {attempts} attempts: {cause}"
    hint = "Fix the handler, or set dead_letter_topic to continue past such records. It is not committed."


class HandlerAborted(ConsumeError, CallerError):
    code = "PEN-6023"
    text = "the handler raised {cause} for {record}, which is not an Exception; the consumer stops"
    hint = "Raise an Exception to have a record retried. To stop the consumer, call consumer.stop()."


class HandlerUnstoppable(ConsumeError, CallerError):
    code = "PEN-6024"
    text = "the handler of {record} was cancelled {seconds:g} s ago and is still running"
    hint = "Let CancelledError propagate from the handler; do not catch BaseException around an await."


class LoopBlocked(ConsumeError, CallerError):
    code = "PEN-6025"
    text = "the event loop was blocked for {seconds:.1f} s while {record} was handled"
    hint = "Move blocking calls out of the coroutine, or use a plain function, which runs on threads."


class WorkerDied(ConsumeError, CallerError):
    code = "PEN-6026"
    retriable = True
    text = "worker process {pid} ended with exit code {exit_code_seen} while it handled {record}"
    hint = "Look for a crash or the out-of-memory killer. The record is retried, then dead-lettered."


class PayloadUnreadable(ConsumeError, CallerError):
    code = "PEN-6027"
    text = "the {field} of {record} cannot be deserialized: {cause}"
    hint = "Set dead_letter_topic to continue past such records; they are not retried."


class HandlerStuck(ConsumeError, CallerError):
    code = "PEN-6028"
    text = "the handler of {record} has run for {seconds:.1f} s, and handler_seconds_max is not set"
    hint = "inspect() lists running records. Set handler_seconds_max to cancel and retry slow ones."


class PayloadUnsendable(ConsumeError, CallerError):
    code = "PEN-6029"
    text = "{record} cannot be sent to a worker process: {cause}"
    hint = "Let the deserializers return values that can be pickled, or deserialize in the handler."


class ClientFailed(ConsumeError, UpstreamError):
    code = "PEN-6040"
    retriable = True
    text = "the Kafka client failed: {reason}"
    hint = "The consumer restarts after a growing pause. If this repeats, check the brokers."


class OutputUndelivered(ConsumeError, UpstreamError):
    code = "PEN-6041"
    retriable = True
    text = "an output of {record} to topic `{topic}` was not written: {reason}"
    hint = "Check that the topic exists and that your Kafka user has WRITE on it."


class TransactionFailed(ConsumeError, UpstreamError):
    code = "PEN-6042"
    retriable = True
    text = "a transaction of `{transactional_id}` was not committed: {reason}"
    hint = "It was aborted; its records run again. Give each live member its own transactional id."


class OutputRefused(ConsumeError, CallerError):
    code = "PEN-6043"
    text = "an output of {record} to topic `{topic}` can never be written: {reason}"
    hint = (
        "Return values of bytes or str that fit into the topic's max.message.bytes, and raise the producer's "
        "message.max.bytes if needed. Set dead_letter_topic to continue past such records."
    )
