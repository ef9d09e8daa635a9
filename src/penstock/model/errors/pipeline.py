"""80xx: the data pipeline: Spark, jobs, tables, checkpoints."""

from penstock.model.errors import (
    CallerError,
    NotFoundError,
    PenstockError,
    UnavailableError,
    UpstreamError,
    UsageError,
)


class ConnectorsMissing(UpstreamError):
    code = "PEN-8001"
    retriable = True
    text = "the Spark connectors cannot be used: {reason}"
    hint = "Fetch them with: penstock pipeline fetch --force"


class SparkFailed(UpstreamError):
    code = "PEN-8002"
    retriable = True
    text = "{what} failed in Spark: {reason}"
    hint = "Nothing unfinished was committed: run it again. Spark's log: {log}"


class JobUnknown(NotFoundError):
    code = "PEN-8003"
    text = "there is no job {job!r}"
    hint = "Known jobs: {known}."


class JobInvalid(UsageError):
    code = "PEN-8004"
    text = "{where}: `{key}` is {value!r}, {expected}"
    hint = "Correct it in the pipeline settings, see docs/pipeline.md."


class TopicMissing(NotFoundError):
    code = "PEN-8005"
    text = "{job}: topic {topic!r} does not exist at {bootstrap}, or this login may not describe it"
    hint = "Create the topic, correct its name, or grant the login Describe and Read on it."


class RecordsLost(UpstreamError):
    code = "PEN-8006"
    text = "{job}: records of {topic} were removed before they were read: {ranges}"
    hint = (
        "Retention overtook the job. Restore the records, or continue without them: "
        "penstock pipeline run {job} --accept-loss"
    )


class TopicReplaced(CallerError):
    code = "PEN-8007"
    text = "{job}: topic {topic!r} has id {actual}, but the job has read the topic with id {expected}"
    hint = (
        "The topic was deleted and re-created, so its old offsets are meaningless. Give the job another "
        "name and table, or restore the old topic."
    )


class CheckpointMismatch(CallerError):
    code = "PEN-8008"
    text = "{job}: {checkpoint} belongs to query {actual}, but table {table} was last written by {expected}"
    hint = (
        "Restore the right checkpoint. Or remove this one: the job then resumes from the offsets stored in "
        "the table."
    )


class CheckpointDamaged(CallerError):
    code = "PEN-8009"
    text = "{job}: the checkpoint {checkpoint} cannot be read: {reason}"
    hint = "Remove it: the job then resumes from the offsets stored in the table."


class TableBehind(CallerError):
    code = "PEN-8010"
    text = "{job}: the checkpoint is at batch {checkpoint}, but table {table} is at {actual}"
    hint = (
        "The table was moved, rolled back or re-created. Restore it, or remove the checkpoint {directory} to "
        "read again what the table lacks."
    )


class SchemaConflict(CallerError):
    code = "PEN-8011"
    text = "{job}: column `{column}` of {table} is {actual}, but the job writes {expected}"
    hint = "Change the job's columns, or write to another table."


class FieldsUnknown(CallerError):
    code = "PEN-8012"
    text = "{job}: records of {topic} have fields that the job does not declare: {fields}"
    hint = "Declare them, set `evolve: add` to add such columns, or `evolve: ignore` to leave them out."


class SchemaFileInvalid(UsageError):
    code = "PEN-8013"
    text = "{path} cannot be used as a schema: {reason}"
    hint = "Use an Avro schema (.avsc), or a Protobuf descriptor set made with `protoc -o` and its `message`."


class RangeInvalid(UsageError):
    code = "PEN-8014"
    text = "{job}: {reason}"
    hint = "The topic holds {held}; ends are exclusive. Example:  --from 0:100,1:0 --until 0:200,1:50"


class LakeUnusable(UpstreamError):
    code = "PEN-8015"
    text = "the lake at {where} cannot be used: {reason}"
    hint = "Free disk space, or correct `lake` in the pipeline settings, then run again: nothing was lost."


class TableMissing(NotFoundError):
    code = "PEN-8016"
    text = "table {table} does not exist in the lake at {where}"
    hint = "Run the job that writes it first: penstock pipeline run {job}"


class JobBusy(CallerError):
    code = "PEN-8017"
    retriable = True
    text = "{job}: another run is in progress in {directory}"
    hint = "Wait for it to end, or stop it. A job can only run once at a time."


class PositionMoved(CallerError):
    code = "PEN-8019"
    retriable = True
    text = "{job}: {table} is at offsets {actual}, but this run has read from {expected}"
    hint = (
        "Another run of the job has written in between, perhaps on another host. This run wrote nothing "
        "after that; the next one continues where the table ends."
    )


class TableContended(UnavailableError):
    code = "PEN-8020"
    text = "{table}: other commits came first at each of {attempts} attempts"
    hint = "Run it again when fewer programs write to the table: nothing was lost."


class KeyMoved(CallerError):
    code = "PEN-8021"
    text = "{job}: {reason}, so offsets do not show which record of a key is the newest"
    hint = (
        "Partitions were added to {topic}, or its records were not partitioned by key. Set `order_by` to a "
        "column that orders the records of a key, such as kafka_timestamp."
    )


class RegistryUnusable(UpstreamError):
    code = "PEN-8022"
    retriable = True
    text = "the schema registry at {url} cannot be used: {reason}"
    hint = "Correct `registry` in the pipeline settings, or wait until it responds: nothing was lost."


class JobDefect(PenstockError):
    code = "PEN-8023"
    text = "{job} failed unexpectedly: {reason}"
    hint = "A defect of the job or of Penstock: the log has the traceback. Other jobs keep their intervals."


class DiskFull(UnavailableError):
    code = "PEN-8018"
    text = "{what}: no space left on the disk: {reason}"
    hint = "Free space for the lake and the pipeline's state, then run it again: nothing was lost."
