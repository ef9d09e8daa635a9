"""The simulator: load traces, a consumer group, an HPA, and the scalers that drive it.

What it is: a deterministic model, one second a step, in which the very same decision functions
run that serve KEDA, beside KEDA's own kafka scaler as baseline. From a seed, so every figure can
be had again.

What it is not: a model of Kafka. Brokers are a place where records wait.

What it promises: the HPA follows the rules Kubernetes documents (and is tested by their
examples), and the baseline follows KEDA's code, its cap bug included. Neither arm sees anything
that its real counterpart could not see.
"""
