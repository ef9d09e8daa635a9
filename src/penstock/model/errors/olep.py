"""70xx: events, logs, executors and their stores."""

from penstock.model.errors import Exit, Fault, PenstockError


class EventUnreadable(PenstockError):
    code = "PEN-7001"
    fault = Fault.CALLER
    text = "the event cannot be read: {reason}"
    hint = "The executor lists it under its rejected events; correct the writer and append the event again."


class EventIdInvalid(PenstockError):
    code = "PEN-7002"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{value!r} cannot be the id of a request: {reason}"
    hint = "Use 1 to 200 printable characters that do not begin with `=`, a UUID for instance."


class TokenUnreadable(PenstockError):
    code = "PEN-7003"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "the position token cannot be read: {reason}"
    hint = "Pass the token exactly as it was returned; it is opaque and carries a checksum."


class TokenForeign(PenstockError):
    code = "PEN-7004"
    fault = Fault.CALLER
    exit_code = Exit.NOT_FOUND
    text = "the position token speaks of topic id {topic_id}, and `{topic}` has the id {actual}"
    hint = "The topic was deleted and created anew, or the token belongs to another log; take a new token."


class LogMissing(PenstockError):
    code = "PEN-7005"
    fault = Fault.CALLER
    exit_code = Exit.NOT_FOUND
    text = "there is no topic `{topic}` on this cluster"
    hint = "Create it first: its number of partitions fixes where each key lives, for ever."


class LogUnavailable(PenstockError):
    code = "PEN-7006"
    fault = Fault.UPSTREAM
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "`{topic}` cannot be reached: {reason}"
    hint = "Check the bootstrap address, the login and that the brokers are up; nothing was lost."


class AppendUnknown(PenstockError):
    code = "PEN-7007"
    fault = Fault.UPSTREAM
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "whether the event {id} reached `{topic}` is not known: {reason}"
    hint = "Append it again with the same id; the executor suppresses a repeat."


class LogReplaced(PenstockError):
    code = "PEN-7010"
    fault = Fault.CALLER
    text = "{store} holds state of topic id {topic_id}, and `{topic}` now has the id {actual}"
    hint = "The topic was created anew. Move the store away to begin from the new log's start."


class HistoryMissing(PenstockError):
    code = "PEN-7011"
    fault = Fault.CALLER
    text = "`{topic}`/{partition} begins at offset {start}, and the state of this executor ends at {position}"
    hint = "Retention removed events that the state still needs: restore a snapshot that reaches {start}."


class StoreFenced(PenstockError):
    code = "PEN-7012"
    fault = Fault.UPSTREAM
    retriable = True
    text = "partition {partition} of {store} was taken over: epoch {epoch} of ours, {actual} there"
    hint = "Another executor owns the partition now; this one gives it up. Nothing was applied."


class StoreFailed(PenstockError):
    code = "PEN-7013"
    fault = Fault.UPSTREAM
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "{store} refused a commit: {reason}"
    hint = "Nothing of the batch was applied. Free space or repair the store, then start the executor again."


class StoreMismatch(PenstockError):
    code = "PEN-7014"
    fault = Fault.CALLER
    text = "{store} was made for {found}, not for {expected}"
    hint = "Point the executor at its own store, or move this one away to rebuild it from the log."


class LogGrown(PenstockError):
    code = "PEN-7015"
    fault = Fault.CALLER
    text = "{what} has {actual} partitions, and {store} was made when it had {expected}"
    hint = (
        "Keys have moved away from their history, so nothing more is applied. Create a new log with the "
        "wanted number of partitions, append the requests anew, and begin with new state."
    )


class DecideImpure(PenstockError):
    code = "PEN-7020"
    fault = Fault.CALLER
    text = "`decide` of {application} is not a function of state and event: {reason} (at {where})"
    hint = "Take time from the event, ids from the runner, and do I/O in a subscriber. Nothing was applied."


class DecisionInvalid(PenstockError):
    code = "PEN-7021"
    fault = Fault.CALLER
    text = "`decide` of {application} returned what cannot be kept: {reason}"
    hint = "Return rows of declared tables and events for declared logs, within the documented bounds."


class ApplicationInvalid(PenstockError):
    code = "PEN-7022"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "application {application}: {reason}"
    hint = "Correct the declaration; docs/olep.md lists what an application declares."


class EventRejected(PenstockError):
    code = "PEN-7023"
    fault = Fault.CALLER
    text = "the executor of {application} stopped at offset {offset}, rejected as {reason}: {detail}"
    hint = "Its rule for this reason is `stop`. Fix the cause and start it again, or set the rule to `skip`."


class RejectedMissing(PenstockError):
    code = "PEN-7024"
    fault = Fault.CALLER
    exit_code = Exit.NOT_FOUND
    text = "no rejected event is listed at partition {partition}, offset {offset}"
    hint = "List them with `penstock olep rejected`; one that was retried with success leaves the list."


class OutcomeUnknown(PenstockError):
    code = "PEN-7030"
    fault = Fault.UPSTREAM
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "request {id} has reached no final state within {seconds:g} s"
    hint = "It may still. Ask again with the same id: a repeat is answered, never carried out twice."


class WaitersFull(PenstockError):
    code = "PEN-7031"
    fault = Fault.UPSTREAM
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "{count} requests are waiting for their outcome already, which is the bound"
    hint = "Try again shortly, or raise `waiters_max`."


class SnapshotBroken(PenstockError):
    code = "PEN-7040"
    fault = Fault.UPSTREAM
    text = "the snapshot {name} cannot be used: {reason}"
    hint = "Remove it from the shelf; the executor takes the one before it, or the log from its start."


class RequestMissing(PenstockError):
    code = "PEN-7050"
    fault = Fault.CALLER
    exit_code = Exit.NOT_FOUND
    text = "no event of request {id} was found in {logs}"
    hint = "Check the id; events older than the topics' retention are gone."
