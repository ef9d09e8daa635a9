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


class AdoptedInUse(CallerError):
    code = "PEN-2027"
    text = "{name!r} already carries a platform, or what is left of one: {shown}"
    hint = "Use that platform's control plane. If it is gone, delete its topics `_penstock.*` first."


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


class NoBrokersSelected(CallerError):
    code = "PEN-2035"
    text = "cluster {name!r} has no broker that `brokers` and `zones` select; it has {listed}"
    hint = "Correct `brokers` or `zones` of that cluster, or remove both to use every broker."


class ClusterClaimed(CallerError):
    code = "PEN-2036"
    text = "cluster {name!r} carries tenants of another platform: {tenants}"
    hint = "A Kafka cluster carries one platform. Use its control plane, or import its registry first."


class InterventionRefused(CallerError):
    code = "PEN-2037"
    retriable = True
    text = "{actor} may not intervene in {cluster} now: {reason}"
    hint = "Wait until {other} has ended, or end it first."


class OrderNotFollowed(UnavailableError):
    code = "PEN-2038"
    text = "node {node} is not {expected} after {seconds:.0f} s: {reason}"
    hint = "Check that the supervisor runs (`penstock status`), and read the log of the node."


class RollRunning(CallerError):
    code = "PEN-2039"
    text = "roll {roll} of {cluster} is {state}"
    hint = (
        "Wait for it (`penstock fleet roll show`), resume it or abort it. A cluster has one roll at a time."
    )


class RollRefused(CallerError):
    code = "PEN-2040"
    text = "{cluster} cannot be rolled now: {reason}"
    hint = "{way_out}"


class RollInterrupts(CallerError):
    code = "PEN-2041"
    text = "the roll would make partitions of {topics} unavailable: they have no replica to spare"
    hint = "Add replicas, or accept it: --allow-unavailable <topic>, once for each of them."


class NotRollable(UsageError):
    code = "PEN-2042"
    text = "a roll cannot change {what}"
    hint = "{way_out}"


class NothingToRoll(CallerError):
    code = "PEN-2043"
    text = "every node of {cluster} runs what its fleet file describes"
    hint = "To restart a node anyway, name it: penstock fleet roll --node <node>"


class RollStateConflict(CallerError):
    code = "PEN-2044"
    text = "roll {roll} is {state}; it cannot be {change}"
    hint = "{way_out}"


class RestartCommandFailed(UpstreamError):
    code = "PEN-2045"
    text = "the restart command of node {node} {outcome}: {output}"
    hint = "Run it by hand: {command}. Then resume the roll, or adopt the cluster again with a right command."


class RestartCommandInvalid(UsageError):
    code = "PEN-2046"
    text = "{command!r} is no restart command: {reason}"
    hint = "Write a program and its arguments, with {{host}}: --restart 'systemctl -H {{host}} restart kafka'"


class SettingNotApplied(UpstreamError):
    code = "PEN-2047"
    retriable = True
    text = "broker {broker} has {key}={actual}, not {expected}"
    hint = "Look for a value that is set for this broker alone, and remove it."


class RollMissing(NotFoundError):
    code = "PEN-2048"
    text = "{cluster} has no roll"
    hint = "Start one with: penstock fleet roll"


class ControllersUnreachable(DeniedError):
    code = "PEN-2049"
    text = "the controllers of {cluster} cannot be read: {reason}"
    hint = "A roll needs their listener, and the right ClusterAction for the platform's user."


class VersionUnresolved(CallerError):
    code = "PEN-2050"
    text = "Kafka {version} cannot be resolved: {reason}"
    hint = "Choose a released version, and check that this machine reaches its Maven repository."


class VersionTooFar(UsageError):
    code = "PEN-2051"
    text = "a roll cannot lead from Kafka {running} to {desired}: at most {minors} minor versions at a time"
    hint = "Roll to a version in between first, and finalize its features."


class FeatureNotSupported(CallerError):
    code = "PEN-2052"
    text = "{feature} cannot be raised above {level}: node {nodes} supports no more"
    hint = "Roll these nodes first; unregister brokers that are gone for good. Fenced nodes count, too."


class VersionTooOld(CallerError):
    code = "PEN-2053"
    text = "Kafka {version} supports {feature} up to {supported}, but {level} is in force"
    hint = "Choose a newer version: raised features cannot be taken back."


class BrokerMinimumSet(CallerError):
    code = "PEN-2054"
    text = "broker {broker} sets min.insync.replicas itself, which {feature} forbids"
    hint = "Remove it from the broker (kafka-configs --delete-config), and set it for the cluster or topics."


class MetadataLost(CallerError):
    code = "PEN-2055"
    text = "{directory} is empty, and {node} was the only controller of {cluster}: its metadata is lost"
    hint = (
        "Put the directory back. With an empty one, brokers would drop their topics. "
        "Three controllers survive the loss of a disk: penstock fleet controllers add"
    )


class QuorumStatic(CallerError):
    code = "PEN-2056"
    text = "{cluster} has a static quorum, whose voters cannot be changed while it runs"
    hint = (
        "Replace `controller.quorum.voters` by `controller.quorum.bootstrap.servers` on every node, restart "
        "them with Kafka 4.1 or newer, and raise kraft.version: penstock fleet upgrade finalize"
    )


class ControllersElsewhere(CallerError):
    code = "PEN-2057"
    text = "the controllers of {cluster} run elsewhere, so Penstock can list them and no more"
    hint = "Change them where they run, with kafka-metadata-quorum."


class ControllersCombined(CallerError):
    code = "PEN-2058"
    text = "the controllers of {cluster} are its brokers, so their number is fixed"
    hint = "Start a fleet with separate controllers, in another home: penstock up --home <new>"


class ControllerUnknown(NotFoundError):
    code = "PEN-2059"
    text = "{cluster} has no controller {controller}; known: {known}"
    hint = "Show its controllers with: penstock fleet controllers list"


class ControllerMajority(CallerError):
    code = "PEN-2060"
    text = "without controller {controllers}, {left} of {voters} voters would be caught up: no majority"
    hint = "Start the other controllers first, or add some: penstock fleet controllers add"


class ControllersNotKnown(CallerError):
    code = "PEN-2061"
    text = "{nodes} would know none of the controllers that stay"
    hint = "Restart these nodes first, so that they learn of the others: penstock fleet roll"


class ControllersChanging(CallerError):
    code = "PEN-2062"
    text = "the controllers of {cluster} are being changed by operation {operation}"
    hint = "Wait until it has ended: penstock operation list"


class ControllerNotJoined(UpstreamError):
    code = "PEN-2063"
    retriable = True
    text = "controller {controller} is a voter with another disk than the one it has"
    hint = "Replace it: penstock fleet controllers replace {controller}"
