"""30xx: Kafka's protocol and the client that speaks it."""

from penstock.model.errors import Exit, Fault, PenstockError


class DefinitionsMissing(PenstockError):
    code = "PEN-3001"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "Kafka's message definitions are not at {path}"
    hint = "Run `make setup`, or `python -m penstock.wire.definitions JARS` with a folder of Kafka's jars."


class DefinitionsUnreadable(PenstockError):
    code = "PEN-3002"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{path}: cannot be read as Kafka's message definitions: {reason}"
    hint = "Remove it and run `make setup`, which compiles the definitions from the pinned jars again."


class DefinitionUnknown(PenstockError):
    code = "PEN-3003"
    fault = Fault.OURS
    text = "Kafka {kafka_version} defines no {kind} {name!r}"
    hint = "`python -m penstock.wire.changes` lists what a Kafka version defines."


class VersionUnknown(PenstockError):
    code = "PEN-3004"
    fault = Fault.CALLER
    text = "{message} has no version {version}; Kafka {kafka_version} defines {valid}"
    hint = "Negotiate with ApiVersions, and stay within the range given."


class ValueUnfit(PenstockError):
    code = "PEN-3005"
    text = "{message} v{version}: {path} {reason}"
    hint = "Give the value the type and size that Kafka's definition of the field asks for."


class RequestMalformed(PenstockError):
    """Bytes that claim to be a request and are none: whoever sent them is at fault."""

    code = "PEN-3006"
    fault = Fault.CALLER
    text = "{message} v{version} cannot be read: {reason}"
    hint = "The sender does not follow Kafka's protocol here, or the bytes were cut or changed on the way."


class ResponseMalformed(PenstockError):
    """Bytes from a broker (a response, a record of one of its logs) that cannot be read."""

    code = "PEN-3007"
    fault = Fault.UPSTREAM
    text = "{message} v{version} cannot be read: {reason}"
    hint = "The broker speaks another version than it said, or the bytes were cut or changed on the way."


class BrokerUnreachable(PenstockError):
    code = "PEN-3010"
    fault = Fault.UPSTREAM
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "{address}: cannot connect: {reason}"
    hint = "Check that the broker runs, and that the address and the listener's security are right."


class ConnectionLost(PenstockError):
    code = "PEN-3011"
    fault = Fault.UPSTREAM
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "{address}: the connection was lost: {reason}"
    hint = "The broker stopped or closed the connection; whether it did what was asked is not known."


class CallTimedOut(PenstockError):
    code = "PEN-3012"
    fault = Fault.UPSTREAM
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "{api}: no answer from {address} within {seconds:g} s"
    hint = "See whether the brokers are healthy (`penstock fleet status`), or give the call more time."


class LoginRefused(PenstockError):
    code = "PEN-3013"
    fault = Fault.CALLER
    exit_code = Exit.DENIED
    text = "{address}: login as {user!r} by {mechanism} refused: {reason}"
    hint = "Check user, password and mechanism; the broker offers {offered}."


class BrokerUntrusted(PenstockError):
    """Whoever answered could not show that it is the broker: TLS or SCRAM proof failed."""

    code = "PEN-3014"
    fault = Fault.UPSTREAM
    exit_code = Exit.DENIED
    text = "{address}: could not prove that it is the broker: {reason}"
    hint = "Check the certificate authority and the host name; another server may answer at this address."


class ApiUnsupported(PenstockError):
    code = "PEN-3015"
    fault = Fault.UPSTREAM
    text = "{address}: {api} is not spoken there in a version we know ({offered} offered, {known} known)"
    hint = "Use a Kafka close to {kafka_version}; `penstock fleet adopt` says what a cluster allows."


class FrameTooLarge(PenstockError):
    code = "PEN-3016"
    fault = Fault.UPSTREAM
    text = "{address}: an answer of {size} bytes, at most {size_max} are taken"
    hint = "This is not a Kafka listener, or it expects TLS; else ask for less at a time."


class BrokerUnknown(PenstockError):
    code = "PEN-3017"
    fault = Fault.CALLER
    exit_code = Exit.NOT_FOUND
    text = "the cluster has no node {node}"
    hint = "Nodes that are up now: {known}."


class KafkaRefused(PenstockError):
    """The broker answered with an error code that asking again will not change."""

    code = "PEN-3020"
    fault = Fault.CALLER
    text = "{subject}{api} refused by Kafka: {said}"
    hint = "Correct what was asked for; Kafka's documentation explains the error by its name."


class KafkaDenied(PenstockError):
    code = "PEN-3021"
    fault = Fault.CALLER
    exit_code = Exit.DENIED
    text = "{subject}{api} denied by Kafka: {said}"
    hint = "Use an account with the right, or grant it to this one."


class KafkaMissing(PenstockError):
    code = "PEN-3022"
    fault = Fault.CALLER
    exit_code = Exit.NOT_FOUND
    text = "{subject}{api} found nothing in Kafka: {said}"
    hint = "Check the name or id; what was made a moment ago may take a second to be known everywhere."


class KafkaBusy(PenstockError):
    """The broker answered with an error code that may be gone when asked again."""

    code = "PEN-3023"
    fault = Fault.UPSTREAM
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "{subject}{api} cannot be done by Kafka now: {said}"
    hint = "Try again; if it stays, look at the brokers' health."


class BatchCorrupt(PenstockError):
    code = "PEN-3030"
    fault = Fault.UPSTREAM
    text = "record batch at offset {offset}: {reason}"
    hint = "The bytes were cut or changed after they were written; read the partition from another replica."


class BatchTooOld(PenstockError):
    code = "PEN-3031"
    fault = Fault.CALLER
    text = "record batch at offset {offset}: message format {magic}, only format 2 is read"
    hint = "Formats 0 and 1 ended with Kafka 4.0: have the topic rewritten by a Kafka 3 release first."


class BatchTooLarge(PenstockError):
    code = "PEN-3032"
    fault = Fault.UPSTREAM
    text = "record batch at offset {offset}: more than {size_max} bytes when decompressed"
    hint = "Raise the limit if the topic's messages are meant to be that large."


class PlaceLost(PenstockError):
    code = "PEN-3033"
    fault = Fault.UPSTREAM
    text = "partition {partition} no longer has what stood at offset {position}"
    hint = "Retention or a new topic of the same name took it; read the partition again from its start."


class ProducerFenced(PenstockError):
    code = "PEN-3034"
    fault = Fault.UPSTREAM
    text = "transactional id {transactional_id!r} is somebody else's now ({api})"
    hint = "Another process took over; what this one had not committed is void."
