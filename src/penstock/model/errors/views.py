"""71xx: views of logs, and reading them consistently."""

from penstock.model.errors import Exit, Fault, PenstockError


class ProjectionInvalid(PenstockError):
    code = "PEN-7100"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "projection {projection}: {reason}"
    hint = "Correct the declaration; docs/views.md lists what a projection declares."


class ViewChanged(PenstockError):
    code = "PEN-7101"
    fault = Fault.CALLER
    text = "{view} was made by {found}, and the projection is now {expected}"
    hint = "Rebuild it into a new generation with `penstock olep view rebuild`; the old one serves meanwhile."


class ViewReplaced(PenstockError):
    code = "PEN-7102"
    fault = Fault.CALLER
    text = "{view} follows topic id {topic_id}, and `{topic}` now has the id {actual}"
    hint = "The topic was created anew. Drop the view, or rebuild it from the new log."


class ViewTaken(PenstockError):
    code = "PEN-7103"
    fault = Fault.CALLER
    text = "{view} has another writer: epoch {epoch} of ours, {actual} there"
    hint = "One process writes a view. Nothing of this batch was applied; stop one of the two writers."


class ViewFailed(PenstockError):
    code = "PEN-7104"
    fault = Fault.UPSTREAM
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "{view} cannot be written or read: {reason}"
    hint = "Nothing of the batch was applied. The runner tries again; free space or repair the store."


class ViewEventRefused(PenstockError):
    code = "PEN-7105"
    fault = Fault.CALLER
    text = "{view} stopped before partition {partition}, offset {offset}: {reason}: {detail}"
    hint = "Its rule for this reason is `stop`. Correct the projection and start it again, or choose `skip`."


class ViewMissing(PenstockError):
    code = "PEN-7106"
    fault = Fault.CALLER
    exit_code = Exit.NOT_FOUND
    text = "there is no generation {generation} of the view {view}"
    hint = "Run the view once to create it; `penstock olep view status` lists its generations."


class ViewBehind(PenstockError):
    code = "PEN-7110"
    fault = Fault.UPSTREAM
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "{view} has not reached the position that was asked for within {seconds:g} s"
    hint = "Try again with the same token, wait longer, or read without one and take an older answer."


class ViewStopped(PenstockError):
    code = "PEN-7111"
    fault = Fault.UPSTREAM
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "{view} is not being written any more, so it will not reach the position that was asked for"
    hint = "Start its runner again; it goes on where it stopped."


class ViewStale(PenstockError):
    code = "PEN-7112"
    fault = Fault.UPSTREAM
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "{view} shows the log as it was {age} ago, at most {bound:g} s are allowed"
    hint = "Try again shortly, allow older answers, or look why the view lags: `penstock olep view status`."


class SnapshotGone(PenstockError):
    code = "PEN-7113"
    fault = Fault.CALLER
    retriable = True
    text = "{view} keeps no rows as of that position: it keeps {kept}"
    hint = "Take a new snapshot. Old rows are kept for some seconds; raise `keep_seconds` for longer reads."


class ViewsDiffer(PenstockError):
    code = "PEN-7114"
    fault = Fault.OURS
    text = "{view}: generations {old} and {new} differ at {position}: {difference}"
    hint = "Same projection, same log, different rows: keep both and report it. The old one still serves."


class WaitersFull(PenstockError):
    code = "PEN-7115"
    fault = Fault.UPSTREAM
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "{count} readers are waiting for {view} already, which is the bound"
    hint = "Try again shortly, or raise `waiters_max`."
