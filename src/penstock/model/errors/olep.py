"""70xx: events, logs, executors and their stores."""

from penstock.model.errors import CallerError, NotFoundError, UnavailableError, UpstreamError, UsageError


class EventUnreadable(CallerError):
    code = "PEN-7001"
    text = "the event cannot be read: {reason}"
    hint = "The executor lists it as rejected; correct the writer and append the event again."


class EventIdInvalid(UsageError):
    code = "PEN-7002"
    text = "{value!r} cannot be the id of a request: {reason}"
    hint = "Use 1 to 200 printable characters that do not start with `=`, such as a UUID."


class TokenUnreadable(UsageError):
    code = "PEN-7003"
    text = "the position token cannot be read: {reason}"
    hint = "Pass the token exactly as it was returned; it is opaque and has a checksum."


class TokenForeign(NotFoundError):
    code = "PEN-7004"
    text = "the position token is for topic id {topic_id}, and `{topic}` has the id {actual}"
    hint = "The topic was recreated, or the token belongs to another log; take a new token."


class LogMissing(NotFoundError):
    code = "PEN-7005"
    text = "there is no topic `{topic}` on this cluster"
    hint = "Create it first, with a number of partitions that you will never change."


class LogUnavailable(UnavailableError):
    code = "PEN-7006"
    text = "`{topic}` cannot be reached: {reason}"
    hint = "Check the bootstrap address, the credentials and that the brokers are up; nothing was lost."


class AppendUnknown(UnavailableError):
    code = "PEN-7007"
    text = "it is unknown whether event {id} reached `{topic}`: {reason}"
    hint = "Append it again with the same id; the executor suppresses repeats."


class LogReplaced(CallerError):
    code = "PEN-7010"
    text = "{store} has state of topic id {topic_id}, and `{topic}` now has the id {actual}"
    hint = "The topic was recreated. Move the store away to start from the beginning of the new log."


class HistoryMissing(CallerError):
    code = "PEN-7011"
    text = "`{topic}`/{partition} starts at offset {start}, and the executor's state is at {position}"
    hint = "Retention removed events that the state needs; restore a snapshot at {start} or later."


class StoreFenced(UpstreamError):
    code = "PEN-7012"
    retriable = True
    text = "partition {partition} of {store} has {actual}, and this executor {expected}"
    hint = (
        "Another executor owns the partition now, or the store was rolled back; this one gives the partition "
        "up, or continues from where the store is. Nothing was applied."
    )


class StoreFailed(UnavailableError):
    code = "PEN-7013"
    text = "{store} refused a commit: {reason}"
    hint = "Nothing of the batch was applied. Free space or repair the store, then restart the executor."


class StoreUnavailable(StoreFailed):
    code = "PEN-7016"
    text = "{store} is unavailable: {reason}"
    hint = "The executor retries once a second and continues when the store responds. Nothing was applied."


class StoreMismatch(CallerError):
    code = "PEN-7014"
    text = "{store} was created for {actual}, not for {expected}"
    hint = "Configure the executor with its own store, or move this one away to rebuild it from the log."


class LogGrown(CallerError):
    code = "PEN-7015"
    text = "{what} has {actual} partitions, and {store} was created when it had {expected}"
    hint = (
        "Keys are separated from their history, so nothing more is applied. Create a new log with the "
        "number of partitions you need, append the requests to it, and start with new state."
    )


class DecideImpure(CallerError):
    code = "PEN-7020"
    text = "`decide` of {application} is not a function of state and event: {reason} (at {where})"
    hint = "Take the time from the event, emit events instead of I/O, use no globals. Nothing was applied."


class DecisionInvalid(CallerError):
    code = "PEN-7021"
    text = "`decide` of {application} returned an invalid decision: {reason}"
    hint = "Return rows of declared tables and events for declared logs, within the documented limits."


class ApplicationInvalid(UsageError):
    code = "PEN-7022"
    text = "application {application}: {reason}"
    hint = "Correct the declaration; docs/olep.md lists what an application declares."


class EventRejected(CallerError):
    code = "PEN-7023"
    text = "the executor of {application} stopped at offset {offset}, rejected as {reason}: {detail}"
    hint = "Its policy for this reason is `stop`. Fix the cause and restart it, or set the policy to `skip`."


class RejectedMissing(NotFoundError):
    code = "PEN-7024"
    text = "no rejected event is listed at partition {partition}, offset {offset}"
    hint = "List them with `penstock olep rejected`; a successful retry removes an event from the list."


class VersionMissing(CallerError):
    code = "PEN-7025"
    text = "a partition is decided by version {version} of {application}, this program has version {newest}"
    hint = (
        "List the declaration of an older version in `earlier`; for a newer one, deploy the newer program. "
        "Nothing was applied."
    )


class OutcomeUnknown(UnavailableError):
    code = "PEN-7030"
    text = "request {id} has reached no final state within {seconds:g} s"
    hint = "It may still do so. Repeat it with the same id: it is never carried out twice."


class WaitersFull(UnavailableError):
    code = "PEN-7031"
    text = "{count} requests are already waiting for their outcome, which is the limit"
    hint = "Retry shortly, or raise `waiters_max`."


class SnapshotBroken(UpstreamError):
    code = "PEN-7040"
    text = "the snapshot {name} cannot be used: {reason}"
    hint = "Remove it; the executor uses the previous snapshot, or reads the log from its start."


class RequestMissing(NotFoundError):
    code = "PEN-7050"
    text = "no event of request {id} was found in {logs}"
    hint = "Check the id; events older than the topics' retention have been deleted."
