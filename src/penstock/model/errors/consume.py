"""60xx: the parallel consumer: what it is given, what handlers do, what Kafka refuses."""

from penstock.model.errors import Exit, Fault, PenstockError


class ConsumeError(PenstockError):
    """The root of this area; not an entry of the catalogue."""


class OptionUnknown(ConsumeError):
    code = "PEN-6001"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "ParallelConsumer has no option `{option}`"
    hint = "Did you mean {near}? Properties of the Kafka client go into the first argument, a mapping."


class OptionInvalid(ConsumeError):
    code = "PEN-6002"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "option `{option}` is {value!r}, {expected}"
    hint = "Correct the option where the ParallelConsumer is made."


class GroupMissing(ConsumeError):
    code = "PEN-6003"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "`group.id` is missing or empty: offsets are committed for a group"
    hint = 'Add "group.id": "<name>" to the Kafka properties; members of one group share the partitions.'


class GroupRefused(ConsumeError):
    code = "PEN-6004"
    fault = Fault.CALLER
    exit_code = Exit.DENIED
    text = "Kafka does not let this member into group `{group}`: {reason}"
    hint = (
        "Check that the group's name is valid, that its other members use the same group.protocol and "
        "partition.assignment.strategy, and that the login may READ the group."
    )


class HandlerMissing(ConsumeError):
    code = "PEN-6005"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "the consumer of {topics} was started without a handler"
    hint = "Decorate a function with @consumer.handler before run()."


class HandlerUnusable(ConsumeError):
    code = "PEN-6006"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{handler} cannot handle records: {reason}"
    hint = "A handler takes one record (a batch handler: one list) and is a function or coroutine function."


class ClientRefused(ConsumeError):
    code = "PEN-6007"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "the Kafka client does not take these properties: {reason}"
    hint = "Property names are librdkafka's; see its CONFIGURATION.md."


class AccessDenied(ConsumeError):
    code = "PEN-6008"
    fault = Fault.CALLER
    exit_code = Exit.DENIED
    text = "Kafka denies access: {reason}"
    hint = "Grant READ on the topics and the group, and WRITE on the topics written to, or log in as another."


class ResultInvalid(ConsumeError):
    code = "PEN-6020"
    fault = Fault.CALLER
    text = "the handler returned {result} for {record}: expected None, an Output or a list of Outputs"
    hint = "Return penstock.consume.Output(topic, value, key=…) for what is to be written, or nothing."


class HandlerTimedOut(ConsumeError):
    code = "PEN-6021"
    fault = Fault.CALLER
    retriable = True
    text = "the handler did not finish {record} within {seconds:g} s"
    hint = "Raise handler_seconds_max, or bound what the handler waits for."


class HandlerFailed(ConsumeError):
    code = "PEN-6022"
    fault = Fault.CALLER
    retriable = True
    text = "{record} failed after {attempts} attempts: {cause}"
    hint = "Set dead_letter_topic to let such records pass, or mend the handler; the record is not committed."


class HandlerAborted(ConsumeError):
    code = "PEN-6023"
    fault = Fault.CALLER
    text = "the handler raised {cause} for {record}, which is not an Exception: the consumer stops"
    hint = "Raise an Exception to have a record retried. To stop the consumer call consumer.stop()."


class HandlerUnstoppable(ConsumeError):
    code = "PEN-6024"
    fault = Fault.CALLER
    text = "the handler of {record} was cancelled {seconds:g} s ago and still runs"
    hint = "Let CancelledError pass through the handler; do not catch BaseException around an await."


class LoopBlocked(ConsumeError):
    code = "PEN-6025"
    fault = Fault.CALLER
    text = "the event loop has not turned for {seconds:.1f} s while {record} was handled"
    hint = "Move blocking calls out of the coroutine, or make the handler a plain function (it gets threads)."


class WorkerDied(ConsumeError):
    code = "PEN-6026"
    fault = Fault.CALLER
    retriable = True
    text = "worker process {pid} ended with exit code {exit_code_seen} while it handled {record}"
    hint = "Look for a crash or the out-of-memory killer; the record is retried, then dead-lettered."


class PayloadUnreadable(ConsumeError):
    code = "PEN-6027"
    fault = Fault.CALLER
    text = "the {part} of {record} cannot be read: {cause}"
    hint = "Set dead_letter_topic to let such records pass; they are not retried."


class HandlerStuck(ConsumeError):
    code = "PEN-6028"
    fault = Fault.CALLER
    text = "the handler of {record} has not returned for {seconds:.1f} s, and no handler_seconds_max is set"
    hint = "inspect() lists what is running. Set handler_seconds_max to have it cancelled and retried."


class ClientFailed(ConsumeError):
    code = "PEN-6040"
    fault = Fault.UPSTREAM
    retriable = True
    text = "the Kafka client failed: {reason}"
    hint = "The consumer restarts by itself with a growing pause. If this goes on, check the brokers."


class OutputUndelivered(ConsumeError):
    code = "PEN-6041"
    fault = Fault.UPSTREAM
    retriable = True
    text = "an output of {record} to topic `{topic}` was not written: {reason}"
    hint = "Check that the topic exists, that the login may WRITE to it, and the record's size."


class TransactionFailed(ConsumeError):
    code = "PEN-6042"
    fault = Fault.UPSTREAM
    retriable = True
    text = "transaction of `{transactional_id}` was not committed: {reason}"
    hint = "It was aborted and its records are run again. Two live members must not share a transactional id."
