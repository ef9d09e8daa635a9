"""54xx: cells, placement, broker states, plans and moves."""

from penstock.model.errors import CallerError, Exit, NotFoundError, UpstreamError, UsageError
from penstock.model.errors.control import ControlError


class CellSizeUneven(CallerError):
    code = "PEN-5401"
    text = "a cell of {size} brokers cannot be spread evenly over {zones} zones"
    hint = "Use {fits} brokers per cell, and set every broker's zone (broker.rack)."


class MoveImpossible(CallerError):
    code = "PEN-5402"
    text = "{partition} has {replicas} replicas, but the target cell has {brokers} brokers"
    hint = "Choose a larger cell, or lower the topic's replication factor first."


class MoveStalled(UpstreamError):
    code = "PEN-5403"
    retriable = True
    text = "moving {tenant} has made no progress for {seconds:.0f} s: {reason}"
    hint = (
        "Moved partitions stay in the new cell. Restore the brokers or raise the throttle, then move again."
    )


class BrokerMissing(ControlError, NotFoundError):
    code = "PEN-5410"
    status = 404
    text = "{cluster} has no broker {broker}; it has {known}"
    hint = "List the brokers with `penstock broker list`."


class StatusNotSettable(ControlError, CallerError):
    code = "PEN-5411"
    status = 422
    text = "an operator cannot set a broker to {status!r}, only to {settable}"
    hint = "The other states are set by the component that needs them: growth, shrinking, health."


class StatusNotClaimed(ControlError, CallerError):
    code = "PEN-5412"
    status = 409
    text = "{owner} has not set broker {broker} to {status}: {others}"
    hint = "Each component clears only what it has set. `penstock broker show {broker}` lists all of it."


class NoLeaderLeft(ControlError, CallerError):
    code = "PEN-5413"
    status = 409
    text = "no other broker of {cell} may lead: {others}"
    hint = "Restore one of them first, then demote broker {broker}."


class PlanUnknown(NotFoundError):
    code = "PEN-5420"
    text = "plan {plan!r} does not exist"
    hint = "List the plans with `penstock balance list`; a plan that ended is kept for a week."


class PlanOfAnotherCluster(CallerError):
    code = "PEN-5421"
    text = "{plan} is a plan of {cluster}, not of {requested}"
    hint = "Run it without naming a cluster, or make a plan of {requested}."


class PlanStale(CallerError):
    code = "PEN-5422"
    text = "the cluster has changed since {plan} was made: {changes}"
    hint = "Nothing has moved. Make a new plan."


class PlanAlreadyRun(CallerError):
    code = "PEN-5423"
    text = "{plan} is {state}; a plan runs once"
    hint = "Make a new plan."


class PlanNotRunning(CallerError):
    code = "PEN-5424"
    text = "{plan} is {state}, so it can be neither cancelled nor paced"
    hint = "To undo a plan that is done, make a new one."


class RateTooLow(UsageError):
    code = "PEN-5425"
    text = "a rate of {rate:.0f} bytes a second is too low for moves, at least {rate_min} are needed"
    hint = "Use 1MB/s or more: below that, single fetches hardly get through."


class PlanUnfinished(UpstreamError):
    code = "PEN-5426"
    exit_code = Exit.UNHEALTHY
    text = "{plan} is {state}, and {dropped} of its moves were dropped"
    hint = "See the reasons with `penstock balance explain {plan}`, and make a new plan."


class GoalUnknown(ControlError, CallerError):
    code = "PEN-5427"
    status = 422
    text = "there is no goal {goal!r}"
    hint = "The goals are {known}."


class CellUnknown(ControlError, NotFoundError):
    code = "PEN-5428"
    status = 404
    text = "{cluster} has no cell {cell!r}; it has {known}"
    hint = "List the cells with `penstock cell list`."


class ClusterUnobserved(ControlError, UpstreamError):
    code = "PEN-5429"
    status = 503
    retriable = True
    text = "nothing is known of {cluster}: {reason}"
    hint = "Check the brokers with `penstock broker list` and `penstock balance show`, then try again."


class PlanTopicUnknown(ControlError, CallerError):
    code = "PEN-5430"
    status = 422
    text = "{cluster} has no topic {topic!r} to exclude"
    hint = "Use names as `penstock balance explain` shows them: a tenant's topics begin with its id."


class UnitsMixed(UsageError):
    code = "PEN-5460"
    text = "{document}: {key}: {kind} are in {actual}, but in {first} at {where}"
    hint = "Use one notation in a file: GiB or GB for sizes, MB/s or Mbit/s for rates."


class CurrenciesMixed(UsageError):
    code = "PEN-5461"
    text = "{where}: {key}: {value!r} is in {actual}, but the file's currency is {currency}"
    hint = "Convert the price: all prices of a file are in one currency."


class DateInFuture(UsageError):
    code = "PEN-5462"
    text = "{where}: the date {date} is in the future; today is {today}"
    hint = "Give the day on which the values were measured or the prices were in force."


class HistoryTooShort(ControlError, CallerError):
    code = "PEN-5463"
    status = 409
    retriable = True
    text = "{cluster} has {hours} hours of load history, advice takes {hours_min}"
    hint = "Try again after a day with metrics agents; `penstock balance show` names brokers without one."


class SizeMaxTooSmall(ControlError, CallerError):
    code = "PEN-5464"
    status = 422
    text = "{cluster} has {brokers} brokers, more than the maximum of {brokers_max}"
    hint = "Raise the maximum, or shrink the cluster first."


class SizeBoundsInvalid(ControlError, CallerError):
    code = "PEN-5465"
    status = 422
    text = "sizes from {brokers_min} to {brokers_max} brokers are impossible for {cluster}: {reason}"
    hint = "Give multiples of its zones, the smaller one first."


class BudgetTooSmall(ControlError, CallerError):
    code = "PEN-5466"
    status = 422
    text = "no profile carries {cluster} for {budget:.2f} {currency} a month; the least is {least:.2f}"
    hint = "Raise the budget, or set no budget."


class ProfileUnknown(ControlError, NotFoundError):
    code = "PEN-5467"
    status = 404
    text = "there is no hardware profile {profile!r}; there is {known}"
    hint = "List the profiles with `penstock fleet profiles list`."


class ProfileRejected(ControlError, CallerError):
    code = "PEN-5468"
    status = 409
    text = "{brokers} × {profile} do not carry {cluster}: {shortfalls}"
    hint = "Take more brokers, or another profile: `penstock fleet profiles check` lists what fits."


class PriceMissing(ControlError, CallerError):
    code = "PEN-5469"
    status = 409
    text = "the price file has no price for the profile {profile!r}; it has {known}"
    hint = "Add the profile below `compute_hour`."


class PricesMissing(ControlError, CallerError):
    code = "PEN-5470"
    status = 409
    text = "there is no price file at {path}"
    hint = "Copy the example that `penstock fleet cost --example` prints, and set your own prices."


class HardwareUnknown(ControlError, CallerError):
    code = "PEN-5471"
    status = 409
    text = "it is not known on which hardware profile {cluster} runs"
    hint = "Set it with `penstock fleet set {cluster} --hardware NAME`."


class ResizeUnderWay(ControlError, CallerError):
    code = "PEN-5440"
    status = 409
    text = "{cluster} is being changed already: {action} of broker {brokers} ({operation})"
    hint = "Wait for it: `penstock operation show {operation}`."


class GrowthImpossible(ControlError, CallerError):
    code = "PEN-5441"
    status = 409
    text = "{cluster} cannot be given brokers: {reason}"
    hint = "{way_out}"


class GrowthUneven(ControlError, CallerError):
    code = "PEN-5442"
    status = 422
    text = "{brokers} brokers cannot be spread evenly over {zones} zones"
    hint = "Add {fits} brokers, or a multiple of {zones}: a cell has as many brokers in every zone."


class ShrinkOfZone(ControlError, CallerError):
    code = "PEN-5443"
    status = 409
    text = "without broker {brokers}, {where} would have no broker in zone {zone}"
    hint = "Keep one broker in every zone, or move the tenants of {where} elsewhere first."


class ShrinkBelowFactor(ControlError, CallerError):
    code = "PEN-5444"
    status = 409
    text = "{topic} has {factor} replicas, and {where} would be left with {left} brokers"
    hint = "Keep more brokers, or lower the topic's replication factor first."


class ShrinkWithoutRoom(ControlError, CallerError):
    code = "PEN-5445"
    status = 409
    text = "the other brokers cannot take over what broker {brokers} carries: {reasons}"
    hint = "Nothing has moved. Shrink by fewer brokers, or free what is missing first."


class ShrinkOfDeadBroker(ControlError, CallerError):
    code = "PEN-5446"
    status = 409
    text = "broker {broker} is dead and still has {replicas} replicas"
    hint = (
        "Start it again; or copy its replicas from others with `penstock balance plan --empty {broker}` and "
        "`penstock balance run <plan>`, then shrink again."
    )


class BrokerNotEmpty(ControlError, UpstreamError):
    code = "PEN-5447"
    status = 409
    retriable = True
    text = "broker {broker} still has {replicas} replicas, such as {partition}, so it is not removed"
    hint = "Wait until its replicas have moved: `penstock broker list` and `penstock balance list` show them."


class BrokerStillRunning(UpstreamError):
    code = "PEN-5448"
    retriable = True
    text = "{brokers} is still running after {seconds:.0f} s"
    hint = "Its log shows why: `penstock logs`. The operation continues as soon as it has stopped."


class BrokerNotStarted(UpstreamError):
    code = "PEN-5449"
    retriable = True
    text = "{brokers} did not start within {seconds:.0f} s: {reason}"
    hint = "See `penstock logs` of that broker. `penstock up` must run: it starts the brokers of a home."


class BrokerTakesNothing(ControlError, CallerError):
    code = "PEN-5450"
    status = 409
    text = "broker {broker} is {states}, so nothing may be moved to it"
    hint = "See why with `penstock broker show {broker}`; `penstock broker uncordon {broker}` ends a cordon."


class ResizePlanCancelled(CallerError):
    code = "PEN-5451"
    text = "{plan}, which this operation needs, was cancelled"
    hint = "Start the operation again if it should continue."


class ClusterTooLarge(ControlError, CallerError):
    code = "PEN-5452"
    status = 409
    text = "{cluster} has {replicas} replicas, at most {replicas_max} fit into the memory for one plan"
    hint = "Move tenants to another physical cluster: plans cover a cluster as a whole."


class CalibrationFailed(UpstreamError):
    code = "PEN-5481"
    retriable = True
    text = "broker {broker} could not be calibrated: {reason}"
    hint = "Check the broker and its metrics agent with `penstock balance show`, then calibrate again."


class CalibrationWithTenants(CallerError):
    code = "PEN-5482"
    text = "{cluster} has {count} logical clusters, which calibration would slow down"
    hint = "Calibrate an empty cluster with the same brokers, or pass --with-tenants."
