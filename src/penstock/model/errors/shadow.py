"""94xx: shadow brokers."""

from __future__ import annotations

from penstock.model.errors import CallerError, UpstreamError


class ShadowStateUnreadable(CallerError):
    code = "PEN-9400"
    text = "the shadow's identity file {path} cannot be used: {reason}"
    hint = "Give the shadows of each cluster a separate directory, or delete the file while none runs there."


class ShadowIdTaken(UpstreamError):
    code = "PEN-9401"
    retriable = True
    text = "broker id {broker} is held by another process; its session did not end in {seconds:.0f} s"
    hint = "Stop the other shadow, or choose another id from the reserved range."


class ShadowRegistrationRejected(UpstreamError):
    code = "PEN-9402"
    text = "the controller rejected the registration of shadow {broker}: {reason}"
    hint = "Check that the user has the ClusterAction right on the controller listener, and the cluster id."


class MetadataVersionUntested(UpstreamError):
    code = "PEN-9403"
    text = "metadata version {level} is not tested with shadow brokers; tested: {tested}"
    hint = (
        "Followers choose request versions by it. Use a tested version, or a release of Penstock for yours."
    )


class ShadowIdInvalid(CallerError):
    code = "PEN-9404"
    text = "broker id {broker} is not in the range that is reserved for shadows, {first} to {last}"
    hint = "Choose an id from that range: other components recognize shadows by it."


class ShadowNotUnfenced(UpstreamError):
    code = "PEN-9405"
    retriable = True
    text = "shadow {broker} is still fenced after {seconds:.0f} s"
    hint = "Check that it reads the metadata log, and the controller's log for the reason."


class PartitionNotLed(UpstreamError):
    code = "PEN-9406"
    retriable = True
    text = "the shadow does not lead partition {partition} in leader epoch {epoch}"
    hint = "It waits until the partition is led again; nothing is lost."


class ShadowNeverInSync(UpstreamError):
    code = "PEN-9407"
    retriable = True
    text = "the shadow did not become an in-sync replica of {partition} within {seconds:.0f} s"
    hint = "Check that the partition has a leader and lists the shadow as a replica."


class ShadowShutdownStuck(UpstreamError):
    code = "PEN-9408"
    retriable = True
    text = "shadow {broker} still leads {count} partitions {seconds:.0f} s after it asked to shut down"
    hint = "A partition without another in-sync replica keeps its leader. Wait for followers, then try again."
