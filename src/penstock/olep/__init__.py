"""Online event processing: applications whose state is a function of partitioned logs.

What it is: a log on any Kafka (`Log`), executors that fold each partition into local state and
send further events (`Executor`), callers that learn the outcome of their request (`Outcomes`),
replay and trace, and views of logs with consistent reads (`penstock.olep.view`). An application is
one pure function, `decide(state, event) -> (rows, events)`.

What it is not: distributed transactions, a workflow engine, or a stream-processing language. It
does not hide that several partitions agree only after a while.

What it promises, with executors, callers and brokers crashing at any point:
- every event of a log is applied exactly once to the state of its partition, in log order;
- what a decision emits reaches its logs, and is applied there exactly once;
- a repeated request is carried out once, as long as it comes within the stated window;
- state equals what a replay of the log gives; a bad event is listed, never lost.
"""
