"""20xx: errors of the fleet: Java, jars, ports, nodes, data directories, adopted clusters."""

from penstock.model.errors import (
    CallerError,
    DeniedError,
    Exit,
    NotFoundError,
    UnavailableError,
    UpstreamError,
    UsageError,
)


class JavaMissing(CallerError):
    code = "PEN-2001"
    text = "no usable Java runtime: {reason}"
    hint = "Install Java {minimum} or newer, or set JAVA_HOME to such a runtime."


class JavaTooOld(CallerError):
    code = "PEN-2002"
    text = "{java} is Java {version}; Kafka needs {minimum} or newer"
    hint = "Install a newer Java runtime, or set JAVA_HOME to one."


class MavenMissing(CallerError):
    code = "PEN-2003"
    text = "Maven is missing, and Kafka's jars have not been downloaded yet"
    hint = "Install Maven (`mvn` on the PATH), then run: penstock fleet fetch"


class JarsUnresolved(UpstreamError):
    code = "PEN-2004"
    retriable = True
    text = "Maven could not resolve Kafka's jars: {reason}"
    hint = "Check that this machine can reach its Maven repository, then run: penstock fleet fetch"


class JarDamaged(CallerError):
    code = "PEN-2005"
    text = "{jar} is {state} in {directory}"
    hint = "Download the jars again with: penstock fleet fetch --force"


class PortTaken(CallerError):
    code = "PEN-2006"
    text = "port {port} ({listener} of {node}) is taken{owner}"
    hint = "Stop the process that uses it, or choose other ports with: penstock up --port <first port>"


class PortShared(UsageError):
    code = "PEN-2007"
    text = "{where}: port {port} is assigned to both {first} and {second}"
    hint = "Give every listener its own port, or set `port: 0` to have free ports chosen."


class DataOfAnotherCluster(CallerError):
    code = "PEN-2008"
    text = "{directory} holds data of {actual}; this node is {expected}"
    hint = "Set PENSTOCK_HOME to the right directory, or move that data away. Nothing was changed."


class DirectoryNotWritable(DeniedError):
    code = "PEN-2009"
    text = "{directory} is not writable: {reason}"
    hint = "Allow this user to write there, or set PENSTOCK_HOME to another directory."


class AlreadyRunning(CallerError):
    code = "PEN-2010"
    text = "this fleet is already running: process {pid} supervises {home}"
    hint = "Inspect it with `penstock status`, or stop it with `penstock down`."


class NotRunning(NotFoundError):
    code = "PEN-2011"
    text = "no fleet is running under {home}"
    hint = "Start it with: penstock up"


class DataInUse(CallerError):
    code = "PEN-2012"
    text = "the data of {node} in {directory} is in use by an unknown process{owner}"
    hint = "Find it with `lsof {directory}/lock` and stop it: two processes would corrupt the data."


class NodeFailed(UpstreamError):
    code = "PEN-2013"
    exit_code = Exit.UNHEALTHY
    text = "{node} exited with {outcome} before it was ready"
    hint = "Read its log with `penstock logs {node}`; its last error: {last_error}"


class NotReady(UnavailableError):
    code = "PEN-2014"
    text = "{nodes} not ready after {seconds:.0f} s: {reason}"
    hint = "Look at `penstock status` and `penstock logs <node>`."


class FormatFailed(UpstreamError):
    code = "PEN-2015"
    text = "formatting the storage of {node} failed: {reason}"
    hint = "The data directory is {directory}. Nothing else was changed."


class DiskFull(CallerError):
    code = "PEN-2016"
    text = "{directory} has {free_mb:.0f} MB free; a fleet needs {needed_mb:.0f} MB to start"
    hint = "Free some space, or set PENSTOCK_HOME to a directory on another disk."


class NodeUnknown(NotFoundError):
    code = "PEN-2017"
    text = "there is no node {node!r} in this fleet"
    hint = "Its nodes are: {known}."


class FleetChanged(UsageError):
    code = "PEN-2018"
    text = "cluster {cluster} was created as {created}, but is now declared as {declared}"
    hint = "Start it as it was created, or start over with `penstock reset` (this deletes its data)."


class StillRunning(CallerError):
    code = "PEN-2019"
    text = "{what} needs a stopped fleet; still running: {running}"
    hint = "Stop the fleet first with: penstock down"


class CapabilityMissing(DeniedError):
    code = "PEN-2022"
    text = "{feature} needs the capability {capability}, which cluster {cluster} lacks: {reason}"
    hint = "{way_out}"


class AdoptedUnknown(NotFoundError):
    code = "PEN-2020"
    text = "there is no adopted cluster {name!r}"
    hint = "Adopted clusters: {known}. Adopt one with: penstock fleet adopt <name> --bootstrap <host:port>"


class AdoptedNameInvalid(UsageError):
    code = "PEN-2028"
    text = "{name!r} cannot be the name of an adopted cluster"
    hint = "Use 1 to 63 letters, digits, '.', '_' and '-', with a letter or digit first."


class AdoptedTwice(CallerError):
    code = "PEN-2021"
    text = "{name!r} is already adopted as cluster {kafka_id}; {bootstrap} is cluster {other}"
    hint = "Choose another name, or remove the first with: penstock fleet abandon {name}"


class AdoptedNotEmpty(CallerError):
    code = "PEN-2027"
    text = "{name!r} is not empty: topics and groups found: {count} ({shown})"
    hint = "Give the tenant an empty cluster, or delete the topics and groups that are no longer needed."


class MetricsUnreachable(UnavailableError):
    code = "PEN-2023"
    text = "no metrics from {address}: {reason}"
    hint = "Check that the node runs with the JMX exporter and that the port is reachable."


class StopTimedOut(UpstreamError):
    code = "PEN-2024"
    exit_code = Exit.UNHEALTHY
    text = "{nodes} did not stop within {seconds:.0f} s and had to be killed"
    hint = "No data is lost: a killed node recovers its logs at the next start, which takes a little longer."


class ClusterUnknown(NotFoundError):
    code = "PEN-2025"
    text = "there is no cluster {cluster!r} in this fleet"
    hint = "Its clusters are: {known}."


class PlatformKeyLost(CallerError):
    code = "PEN-2026"
    text = "{path} is missing, and the passwords stored in the data of {node} derive from it"
    hint = "Restore the file from a backup, or start over with `penstock reset` (this deletes the data)."


class ClusterReplaced(CallerError):
    code = "PEN-2034"
    text = "{bootstrap} is cluster {other}, but {name!r} is cluster {kafka_id}"
    hint = "Correct `bootstrap`. If the cluster was created again on purpose, give it another name."


class RightsMissing(DeniedError):
    code = "PEN-2029"
    text = "{principal} lacks rights on cluster {name!r}: {rights}"
    hint = "Grant them as an administrator of that cluster:\n{commands}"


class AgentUnidentified(CallerError):
    code = "PEN-2030"
    text = "the metrics agent at {address} does not name its broker"
    hint = "Write it as <broker id>={address}, or let it export kafka.server:type=app-info,id=*."


class AgentMismatch(CallerError):
    code = "PEN-2031"
    text = "the metrics agent at {address} belongs to broker {actual}, not to {expected}"
    hint = "Brokers of this cluster: {known}. Correct the address or the id."


class AgentTwice(CallerError):
    code = "PEN-2032"
    text = "the metrics agents at {first} and {second} both belong to broker {broker}"
    hint = "Keep one of the two; the other one may be the address of a load balancer."


class ClusterTwice(CallerError):
    code = "PEN-2033"
    text = "{name!r} and {other!r} are the same Kafka cluster: {kafka_id}"
    hint = "Remove one of them from `clusters`, or correct its `bootstrap`."
