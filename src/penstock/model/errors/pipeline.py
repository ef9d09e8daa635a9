"""80xx: the data pipeline: Spark, jobs, tables, checkpoints."""

from penstock.model.errors import Exit, Fault, PenstockError


class ConnectorsMissing(PenstockError):
    code = "PEN-8001"
    fault = Fault.UPSTREAM
    retriable = True
    text = "the connectors for Spark are not usable: {reason}"
    hint = "Fetch them with: penstock pipeline fetch --force"


class SparkFailed(PenstockError):
    code = "PEN-8002"
    fault = Fault.UPSTREAM
    retriable = True
    text = "{what} failed in Spark: {reason}"
    hint = "Nothing of the unfinished part was committed: run it again. Spark's own words: {log}"


class JobUnknown(PenstockError):
    code = "PEN-8003"
    fault = Fault.CALLER
    exit_code = Exit.NOT_FOUND
    text = "there is no job {job!r}"
    hint = "Known jobs: {known}."


class JobInvalid(PenstockError):
    code = "PEN-8004"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{where}: `{key}` is {value!r}, {expected}"
    hint = "Correct it in the settings of the pipeline, see docs/pipeline.md."


class TopicMissing(PenstockError):
    code = "PEN-8005"
    fault = Fault.CALLER
    exit_code = Exit.NOT_FOUND
    text = "{job}: there is no topic {topic!r} at {bootstrap}, or this login may not see it"
    hint = "Create the topic, correct its name, or let the login describe and read it."


class RecordsLost(PenstockError):
    code = "PEN-8006"
    fault = Fault.UPSTREAM
    text = "{job}: records of {topic} are gone before they were read: {ranges}"
    hint = (
        "Retention overtook the job. Restore them, or go on without them with: "
        "penstock pipeline run {job} --accept-loss"
    )


class TopicReplaced(PenstockError):
    code = "PEN-8007"
    fault = Fault.CALLER
    text = "{job}: topic {topic!r} has the id {found}, the job has read {expected}"
    hint = (
        "A topic was made anew under the same name: offsets of the old one mean nothing in it. Give the "
        "job another name and table, or restore the old topic."
    )


class CheckpointForeign(PenstockError):
    code = "PEN-8008"
    fault = Fault.CALLER
    text = "{job}: {checkpoint} is of query {found}, the table {table} was last written by {expected}"
    hint = (
        "Put the right checkpoint back; or remove this one, and the job goes on from the offsets that the "
        "table itself has stored."
    )


class CheckpointDamaged(PenstockError):
    code = "PEN-8009"
    fault = Fault.CALLER
    text = "{job}: the checkpoint {checkpoint} cannot be read: {reason}"
    hint = "Remove it: the job goes on from the offsets that the table itself has stored."


class TableBehind(PenstockError):
    code = "PEN-8010"
    fault = Fault.CALLER
    text = "{job}: the checkpoint stands at batch {checkpoint}, the table {table} at {found}"
    hint = (
        "The table was moved, rolled back or made anew. Restore it; or remove the checkpoint {directory}, "
        "and what the table lacks is read again."
    )


class SchemaConflict(PenstockError):
    code = "PEN-8011"
    fault = Fault.CALLER
    text = "{job}: column `{column}` of {table} is {found}, the job writes {expected}"
    hint = "Change the declaration of the job, or write to another table."


class FieldsUnknown(PenstockError):
    code = "PEN-8012"
    fault = Fault.CALLER
    text = "{job}: records of {topic} have fields that the job does not declare: {fields}"
    hint = "Declare them, or set `evolve: add` to add such columns, or `evolve: ignore` to leave them out."


class SchemaFileInvalid(PenstockError):
    code = "PEN-8013"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{path}: cannot be used as a schema: {reason}"
    hint = "Give an Avro schema (.avsc), or a Protobuf descriptor set made with `protoc -o`, and `message`."


class RangeInvalid(PenstockError):
    code = "PEN-8014"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{job}: {reason}"
    hint = "The topic holds {held}; ends are exclusive. Example:  --from 0:100,1:0 --until 0:200,1:50"


class LakeUnusable(PenstockError):
    code = "PEN-8015"
    fault = Fault.UPSTREAM
    text = "the lake at {where} cannot be used: {reason}"
    hint = "Make room, or correct `lake` in the settings of the pipeline, then run again: nothing was lost."


class TableMissing(PenstockError):
    code = "PEN-8016"
    fault = Fault.CALLER
    exit_code = Exit.NOT_FOUND
    text = "there is no table {table} in the lake at {where}"
    hint = "Run the job that fills it first, with: penstock pipeline run {job}"


class JobBusy(PenstockError):
    code = "PEN-8017"
    fault = Fault.CALLER
    retriable = True
    text = "{job}: another run of it is under way in {directory}"
    hint = "Wait for it to end, or stop it: two runs of one job would only get in each other's way."


class RoomMissing(PenstockError):
    code = "PEN-8018"
    fault = Fault.UPSTREAM
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "{what}: there is no room left on a disk: {reason}"
    hint = "Make room where the lake and the state of the pipeline lie, then run it again: nothing was lost."
