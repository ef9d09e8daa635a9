"""71xx: views of logs, and consistent reads of them."""

from penstock.model.errors import CallerError, NotFoundError, PenstockError, UnavailableError, UsageError


class ProjectionInvalid(UsageError):
    code = "PEN-7100"
    text = "projection {projection}: {reason}"
    hint = "Correct the declaration; docs/views.md lists what a projection declares."


class ViewChanged(CallerError):
    code = "PEN-7101"
    text = "{view} was built by {actual}, and the projection is now {expected}"
    hint = "Rebuild it with `penstock olep view rebuild`; the old generation serves reads meanwhile."


class ViewReplaced(CallerError):
    code = "PEN-7102"
    text = "{view} follows topic id {topic_id}, and `{topic}` now has the id {actual}"
    hint = "The topic was recreated. Drop the view, or rebuild it from the new log."


class ViewFenced(CallerError):
    code = "PEN-7103"
    text = "{view} has another writer: this one claimed epoch {epoch}, the view is at {actual}"
    hint = "Only one process may write a view. Nothing of this batch was applied; stop one of the writers."


class ViewFailed(UnavailableError):
    code = "PEN-7104"
    text = "{view} cannot be written or read: {reason}"
    hint = "Nothing of the batch was applied. The runner retries; free space or repair the store."


class ViewEventRefused(CallerError):
    code = "PEN-7105"
    text = "{view} stopped before partition {partition}, offset {offset}: {reason}: {detail}"
    hint = "Its policy for this reason is `stop`. Correct the projection and restart it, or choose `skip`."


class ViewMissing(NotFoundError):
    code = "PEN-7106"
    text = "there is no generation {generation} of the view {view}"
    hint = "Run the view once to create it; `penstock olep view status` lists its generations."


class ViewMoved(UnavailableError):
    code = "PEN-7107"
    text = "{view} is at {actual}, and the batch continues from {start}"
    hint = "The store was restored to an earlier state. Nothing was applied; the runner reads on from there."


class ViewRetired(UnavailableError):
    code = "PEN-7108"
    text = "{view} takes no more writes: a rebuild replaces it"
    hint = "Nothing of this batch was applied. The runner continues in the generation that serves."


class ViewBehind(UnavailableError):
    code = "PEN-7110"
    text = "{view} has not reached the requested position within {seconds:g} s"
    hint = "Retry with the same token, wait longer, or read older rows without a token."


class ViewStopped(UnavailableError):
    code = "PEN-7111"
    text = "{view} has no running writer, so it will not reach the requested position"
    hint = "Restart its runner; it continues where it stopped."


class ViewStale(UnavailableError):
    code = "PEN-7112"
    text = "{view} shows the log as it was {age} ago, at most {bound:g} s are allowed"
    hint = "Retry shortly, accept older rows, or see why the view lags: `penstock olep view status`."


class SnapshotUnavailable(CallerError):
    code = "PEN-7113"
    retriable = True
    text = "{view} cannot show rows as of that position: it retains {retained}"
    hint = "Take a new snapshot. Old rows are retained for `keep_seconds`; raise it for longer reads."


class ViewsDiffer(PenstockError):
    code = "PEN-7114"
    text = "{view}: generations {old} and {new} differ at {position}: {difference}"
    hint = "The rows should be equal: keep both generations and report a bug. The old one still serves reads."


class WaitersFull(UnavailableError):
    code = "PEN-7115"
    text = "{count} readers are already waiting for {view}, which is the limit"
    hint = "Retry shortly, or raise `waiters_max`."
