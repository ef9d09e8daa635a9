"""54xx: cells, placement and moves that cannot be made as asked."""

from penstock.model.errors import Fault, PenstockError


class CellSizeUneven(PenstockError):
    code = "PEN-5401"
    fault = Fault.CALLER
    text = "a cell of {size} brokers cannot be spread evenly over {zones} zones"
    hint = "Take {fits} brokers a cell, and name every broker's zone (broker.rack)."


class MoveImpossible(PenstockError):
    code = "PEN-5402"
    fault = Fault.CALLER
    text = "{partition} has {replicas} replicas, the cell it is to move to has {brokers} brokers"
    hint = "Choose a larger cell, or lower the topic's replication factor first."


class MoveStalled(PenstockError):
    code = "PEN-5403"
    fault = Fault.UPSTREAM
    retriable = True
    text = "moving {tenant} has made no progress for {seconds:.0f} s: {reason}"
    hint = (
        "What moved stays where it is. Bring the brokers back, or raise the throttle; asking again resumes."
    )
