"""The persistent-lag scaler: replicas follow pressure that lasts, not noise.

What it is: a KEDA external scaler for any Kafka. It samples the lag of consumer groups on a
clock of its own, judges each partition over a sliding window, and asks for a replica count.
Persistent means *above the threshold without a break for the sustain time*; KEDA's word
`excludePersistentLag` means what is called *stalled* here.

What it is not: a consumer, a Kubernetes client or a second HPA. It never sets replicas, it
answers KEDA's questions; the HPA keeps the last word on limits and speed.

What it promises:

- The verdict is a pure function of the samples, the policy and a small memory that is stored
  beside the samples. Two instances that read the same samples give the same answer.
- A partition that more consumers cannot help (stuck, or alone on its member) never asks for more.
- When the brokers cannot be seen the answer is an error, never a zero.

Two processes: the service answers calls (`server`, `service`, `board`), and the sampler it starts
(`supervisor`, `link`, `sampling`) looks, journals and judges (`loop`), so that neither waits for the other.

The road of one answer, one module a step: `values` (what was sampled), `window` (its history),
`facts` (numbers for each partition), `partitions` (its state), `rules` and `sizing` (numbered
rules), `verdict` (their order), `encoding` (the number the HPA reads).
"""
