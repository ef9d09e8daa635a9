"""30xx: Kafka's protocol and the client that speaks it."""

from penstock.model.errors import (
    CallerError,
    DeniedError,
    Exit,
    NotFoundError,
    PenstockError,
    UnavailableError,
    UpstreamError,
    UsageError,
)


class DefinitionsMissing(UsageError):
    code = "PEN-3001"
    text = "Kafka's message definitions are missing: {path}"
    hint = "Run `make setup`, or `python -m penstock.wire.definitions JARS` with a folder of Kafka's jars."


class DefinitionsUnreadable(UsageError):
    code = "PEN-3002"
    text = "{path}: cannot be read as Kafka's message definitions: {reason}"
    hint = "Remove it and run `make setup`, which compiles the definitions from the pinned jars again."


class DefinitionUnknown(PenstockError):
    code = "PEN-3003"
    text = "Kafka {kafka_version} defines no {kind} {name!r}"
    hint = "`python -m penstock.wire.version_diff` lists what a Kafka version defines."


class VersionUnknown(CallerError):
    code = "PEN-3004"
    text = "{message} has no version {version}; Kafka {kafka_version} defines {valid}"
    hint = "Negotiate the version with ApiVersions, and stay within this range."


class ValueUnfit(PenstockError):
    code = "PEN-3005"
    text = "{message} v{version}: {path} {reason}"
    hint = "Give the value the type and size of the field in Kafka's definition."


class RequestMalformed(CallerError):
    """Bytes that were sent as a request and cannot be read as one."""

    code = "PEN-3006"
    text = "{message} v{version} cannot be read: {reason}"
    hint = "The sender does not follow Kafka's protocol, or the bytes were cut or changed in transit."


class ResponseMalformed(UpstreamError):
    """Bytes from a broker (a response, a record of one of its logs) that cannot be read."""

    code = "PEN-3007"
    text = "{message} v{version} cannot be read: {reason}"
    hint = "The broker uses another version than it advertised, or the bytes were cut or changed in transit."


class BrokerUnreachable(UnavailableError):
    code = "PEN-3010"
    text = "{address}: cannot connect: {reason}"
    hint = "Check that the broker runs, and check its address and the listener's security protocol."


class ConnectionLost(UnavailableError):
    code = "PEN-3011"
    text = "{address}: connection lost: {reason}"
    hint = "The broker stopped or closed the connection. The request may or may not have been executed."


class CallTimedOut(UnavailableError):
    code = "PEN-3012"
    text = "{api}: no response from {address} within {seconds:g} s"
    hint = "Check the brokers with `penstock fleet status`, or raise the timeout."


class LoginRefused(DeniedError):
    code = "PEN-3013"
    text = "{address}: login as {user!r} by {mechanism} refused: {reason}"
    hint = "Check user, password and mechanism; the broker offers {offered}."


class BrokerUntrusted(UpstreamError):
    """The server failed to prove that it is the broker, by TLS or by SCRAM."""

    code = "PEN-3014"
    exit_code = Exit.DENIED
    text = "{address}: cannot verify that this is the broker: {reason}"
    hint = "Check the certificate authority and the host name; another server may listen at this address."


class AuthorityUnknown(BrokerUntrusted):
    code = "PEN-3018"
    text = "{address}: the certificate is not signed by a trusted CA: {reason}"
    hint = "Set `tls.ca` (`--ca`) to the CA that signed the broker's certificate, in PEM."


class CertificateExpired(BrokerUntrusted):
    code = "PEN-3019"
    text = "{address}: the certificate is not valid today: {reason}"
    hint = "Renew the broker's certificate. If it is valid, correct the clock of this machine."


class HostNameMismatch(BrokerUntrusted):
    code = "PEN-3024"
    text = "{address}: the certificate is for another host: {reason}"
    hint = (
        "Connect by a name in the certificate, add this name to its subject alternative names, or set "
        "`tls.server_name`. Brokers' addresses come from their `advertised.listeners`."
    )


class CertificateRefused(DeniedError):
    code = "PEN-3025"
    text = "{address}: the broker refuses this client's certificate: {reason}"
    hint = (
        "Set `tls.certificate` and `tls.key` to a valid certificate of a CA that is in the broker's "
        "`ssl.truststore.location`."
    )


class TokenRejected(LoginRefused):
    code = "PEN-3026"
    text = "{address}: the broker rejects the token of OAuth client {user!r}: {reason}"
    hint = (
        "Compare the token's issuer, audience and scope with the broker's `sasl.oauthbearer.expected.*` "
        "settings, and check that its JWKS endpoint has the signing key. The broker offers {offered}."
    )


class TokenUnavailable(UnavailableError):
    code = "PEN-3027"
    text = "{url}: no token received: {reason}"
    hint = "Check `login.token_url`, `login.ca`, and that the token endpoint runs."


class ClientRefused(DeniedError):
    code = "PEN-3028"
    text = "{url}: no token for OAuth client {client!r}: {reason}"
    hint = "Check `login.client_id`, `login.client_secret` and `login.scope`."


class ApiUnsupported(UpstreamError):
    code = "PEN-3015"
    text = "{address}: no common version of {api} (offered {offered}, supported {known})"
    hint = "Use a Kafka close to {kafka_version}; `penstock fleet adopt` lists what a cluster allows."


class ResponseTooLarge(UpstreamError):
    code = "PEN-3016"
    text = "{address}: response of {size} bytes exceeds the limit of {size_max}"
    hint = "This is not a Kafka listener, or it expects TLS. Otherwise, request less at a time."


class BrokerUnknown(NotFoundError):
    code = "PEN-3017"
    text = "the cluster has no node {node}"
    hint = "Nodes that are up now: {known}."


class KafkaRefused(CallerError):
    """The broker returned an error code that a retry will not change."""

    code = "PEN-3020"
    text = "{subject}{api} refused by Kafka: {detail}"
    hint = "Correct the request; Kafka's documentation explains the error by its name."


class KafkaDenied(DeniedError):
    code = "PEN-3021"
    text = "{subject}{api} denied by Kafka: {detail}"
    hint = "Use an account with this right, or grant it to this account."


class KafkaMissing(NotFoundError):
    code = "PEN-3022"
    text = "{subject}{api} found no match in Kafka: {detail}"
    hint = "Check the name or id. New objects can take a second to reach every broker."


class KafkaBusy(UnavailableError):
    """The broker returned an error code that a retry may clear."""

    code = "PEN-3023"
    text = "{subject}{api} temporarily refused by Kafka: {detail}"
    hint = "Try again; if it persists, check the brokers' health."


class BatchCorrupt(UpstreamError):
    code = "PEN-3030"
    text = "record batch at offset {offset}: {reason}"
    hint = "The bytes were cut or changed after they were written; read the partition from another replica."


class BatchTooOld(CallerError):
    code = "PEN-3031"
    text = "record batch at offset {offset}: message format {magic}, only format 2 is supported"
    hint = "Kafka 4.0 dropped formats 0 and 1: rewrite the topic with a Kafka 3 release first."


class BatchTooLarge(UpstreamError):
    code = "PEN-3032"
    text = "record batch at offset {offset}: more than {size_max} bytes when decompressed"
    hint = "Raise the limit if the topic's records are meant to be that large."


class OffsetOutOfRange(UpstreamError):
    code = "PEN-3033"
    text = "partition {partition} no longer has offset {position}"
    hint = "Retention deleted it, or the topic was recreated. Read the partition again from its start."


class ProducerFenced(UpstreamError):
    code = "PEN-3034"
    text = "transactional id {transactional_id!r} was fenced by a newer producer ({api})"
    hint = "Another process took over. Uncommitted work of this one is discarded."


class CommitUnfinished(UnavailableError):
    code = "PEN-3035"
    text = "the last transaction of {transactional_id!r} was interrupted, and its outcome is unknown"
    hint = "Try again: the process that owns this state starts over from what is committed."
