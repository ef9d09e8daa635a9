"""54xx: cells, placement and moves."""

from penstock.model.errors import CallerError, UpstreamError


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
