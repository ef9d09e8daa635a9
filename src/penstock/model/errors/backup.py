"""91xx: backup and restore, and the object stores they use."""

from __future__ import annotations

from penstock.model.errors import CallerError, NotFoundError, UnavailableError, UpstreamError


class StoreUnavailable(UnavailableError):
    code = "PEN-9100"
    text = "the object store {store} cannot be used: {reason}"
    hint = "Check its address, credentials and free space, then try again. Nothing was lost."


class StoreUnconditional(UpstreamError):
    code = "PEN-9101"
    text = "the object store {store} overwrites objects despite If-None-Match"
    hint = "Use a store with conditional writes: without them a stray writer could destroy a backup."


class ObjectMissing(UpstreamError):
    code = "PEN-9102"
    text = "there is no object {key} in {store}"
    hint = "Run `penstock backup verify`: it lists what else is missing."


class ManifestInvalid(UpstreamError):
    code = "PEN-9103"
    text = "the object {segment} cannot be read: {reason}"
    hint = "It was written by another program or is damaged. Run `penstock backup verify`."


class SegmentDamaged(UpstreamError):
    code = "PEN-9104"
    text = "the segment {segment} is damaged: {reason}"
    hint = "Nothing was stored or restored from it. Run `penstock backup verify --deep`."


class ObjectExists(UpstreamError):
    code = "PEN-9105"
    text = "the object {key} exists in {store} with another content"
    hint = "Another process writes to the same prefix. Give each backup its own prefix."


class BackupMissing(NotFoundError):
    code = "PEN-9110"
    text = "the backup has no {what}; known: {known}"
    hint = "List what can be restored with `penstock backup list`."


class BackupAmbiguous(CallerError):
    code = "PEN-9111"
    text = "{count} topics were named {topic!r} at different times: {ids}"
    hint = "Choose one with `--topic-id`."


class RestoreRefused(CallerError):
    code = "PEN-9112"
    text = "{topic!r} is not restored: {reasons}"
    hint = "Nothing was changed. `penstock backup plan` prints every check."


class RestoreRunning(CallerError):
    code = "PEN-9113"
    text = "restore {restore!r} is at step {step!r} on this cluster, and only one may run"
    hint = "Continue it with `penstock backup restore --resume`, or give it up with `--abandon`."


class RestoreUnproven(UpstreamError):
    code = "PEN-9114"
    text = "{count} replicas differ from the backup after restore {restore!r}: {places}"
    hint = "The topic stays closed for writes. Delete it, and restore again under another name."


class RestoreStuck(UpstreamError):
    code = "PEN-9115"
    retriable = True
    text = "restore {restore!r} made no progress for {seconds:.0f} s: {reason}"
    hint = "Continue it with `penstock backup restore --resume`."


class CatalogueInvalid(UpstreamError):
    code = "PEN-9116"
    text = "the catalogue entry {key} cannot be read: {reason}"
    hint = "It was written by another program or is damaged. Earlier entries are still used."


class ShadowSettingsMissing(CallerError):
    code = "PEN-9117"
    text = "the settings have no `{section}`, which {action} needs"
    hint = "Add it to the settings file; `penstock config explain backup` lists the keys."


class SweepRefused(CallerError):
    code = "PEN-9118"
    text = "nothing is swept: {reason}"
    hint = "Remove the cause, then sweep again. `--dry-run` shows what would be deleted."


class RestoreRecordInvalid(UpstreamError):
    code = "PEN-9119"
    text = "a record of {topic} cannot be read: {reason}"
    hint = "It was written by another version of Penstock, or by another program."


class BackupNotConfigured(NotFoundError):
    code = "PEN-9130"
    text = "no backup of physical cluster {cluster} is configured"
    hint = "Add `backup` to the cluster in the fleet file, or in the settings of the control plane."


class BackupDiffers(UpstreamError):
    code = "PEN-9120"
    text = "the backup of {log} does not fit its log: {reason}"
    hint = "Nothing is restored in place from it. Restore it under another name with `--as`."


class RestoreYielded(UpstreamError):
    code = "PEN-9121"
    retriable = True
    text = "restore {restore!r} of {partition} gave up: {reason}"
    hint = "The partition is as it was before. Try again later, or allow longer with `--pause`."


class InPlaceUnproven(UpstreamError):
    code = "PEN-9122"
    text = "{count} replicas differ from the backup or from others after restore {restore!r}: {places}"
    hint = "The topic is open, and the restore has ended. Replace the named replicas, then check the backup."
