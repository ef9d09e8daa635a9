"""90xx: tiered storage."""

from __future__ import annotations

from penstock.model.errors import CallerError, PenstockError, UsageError


class PluginNotCompiled(PenstockError):
    code = "PEN-9000"
    text = "the brokers' plugin for tiered storage could not be compiled: {reason}"
    hint = "Install a JDK 17 or newer and run `penstock fleet fetch` again."


class PluginMissing(CallerError):
    code = "PEN-9001"
    text = "cluster {cluster!r} has tiered storage, and its plugin is not compiled: there is no Java compiler"
    hint = "Install a JDK 17 or newer, or turn tiering off: `tier: {{store: none}}` in the fleet file."


class RetentionBytesTiered(UsageError):
    code = "PEN-9002"
    text = "topic {topic} cannot have retention.bytes={value}: it is tiered"
    hint = (
        "With it, Kafka may delete tiered data too early (KAFKA-20732). Use retention.ms for the total, and "
        "local.retention.bytes for the brokers' disks."
    )


class S3JarsMissing(CallerError):
    code = "PEN-9003"
    text = "cluster {cluster!r} stores segments in S3, and the jars of that store are not fetched"
    hint = "Run `penstock tier fetch`."
