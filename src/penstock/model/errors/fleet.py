"""20xx: the fleet: Java, jars, nodes, data directories, processes, adoption."""

from penstock.model.errors import Exit, Fault, PenstockError


class JavaMissing(PenstockError):
    code = "PEN-2001"
    fault = Fault.CALLER
    text = "Java is missing: {looked} found no `java`"
    hint = "Install a Java runtime of version {minimum} or newer, or set JAVA_HOME to one."


class JavaTooOld(PenstockError):
    code = "PEN-2002"
    fault = Fault.CALLER
    text = "{java} is Java {version}, Kafka needs {minimum} or newer"
    hint = "Install a newer Java runtime, or set JAVA_HOME to one."


class MavenMissing(PenstockError):
    code = "PEN-2003"
    fault = Fault.CALLER
    text = "Maven is missing, and Kafka's jars are not here yet"
    hint = "Install Maven (`mvn` on the PATH) and run: penstock fleet fetch"


class JarsUnresolved(PenstockError):
    code = "PEN-2004"
    fault = Fault.UPSTREAM
    retriable = True
    text = "Maven could not resolve Kafka's jars: {reason}"
    hint = "Check that this machine reaches its Maven repository, then run: penstock fleet fetch"


class JarDamaged(PenstockError):
    code = "PEN-2005"
    fault = Fault.CALLER
    text = "{jar} is {state} in {directory}"
    hint = "Fetch the jars anew with: penstock fleet fetch --force"


class PortTaken(PenstockError):
    code = "PEN-2006"
    fault = Fault.CALLER
    text = "port {port} ({listener} of {node}) is taken{owner}"
    hint = "Stop what uses it, or choose other ports with: penstock up --port <first port>"


class PortShared(PenstockError):
    code = "PEN-2007"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{where}: port {port} is given to {first} and to {second}"
    hint = "Give every listener of the fleet a port of its own, or let free ones be chosen with `port: 0`."


class DataOfAnotherCluster(PenstockError):
    code = "PEN-2008"
    fault = Fault.CALLER
    text = "{directory} holds data of {found}, this node is {expected}"
    hint = "Point PENSTOCK_HOME at the right place, or move that directory away; nothing was changed."


class DirectoryNotWritable(PenstockError):
    code = "PEN-2009"
    fault = Fault.CALLER
    exit_code = Exit.DENIED
    text = "{directory} is not writable: {reason}"
    hint = "Give this user the right to write there, or set PENSTOCK_HOME to another directory."


class AlreadyRunning(PenstockError):
    code = "PEN-2010"
    fault = Fault.CALLER
    text = "this fleet is already up: process {pid} supervises {home}"
    hint = "See it with `penstock status`, stop it with `penstock down`."


class NotRunning(PenstockError):
    code = "PEN-2011"
    fault = Fault.CALLER
    exit_code = Exit.NOT_FOUND
    text = "nothing is running under {home}"
    hint = "Start it with: penstock up"


class DataInUse(PenstockError):
    code = "PEN-2012"
    fault = Fault.CALLER
    text = "{node}'s data in {directory} is in use by a process that is not known here{owner}"
    hint = "Find it with `lsof {directory}/lock` and stop it; two processes would ruin the data."


class NodeFailed(PenstockError):
    code = "PEN-2013"
    fault = Fault.UPSTREAM
    exit_code = Exit.UNHEALTHY
    text = "{node} ended with {outcome} before it was ready"
    hint = "Read its log with `penstock logs {node}`; its last words: {words}"


class NotReady(PenstockError):
    code = "PEN-2014"
    fault = Fault.UPSTREAM
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "{nodes} not ready after {seconds:.0f} s: {reason}"
    hint = "See `penstock status` and `penstock logs <node>`."


class FormatFailed(PenstockError):
    code = "PEN-2015"
    fault = Fault.UPSTREAM
    text = "{node}: formatting its storage failed: {reason}"
    hint = "The data directory is {directory}; nothing else was changed."


class DiskFull(PenstockError):
    code = "PEN-2016"
    fault = Fault.CALLER
    text = "{directory} has {free_mb:.0f} MB free, a fleet needs {needed_mb:.0f} MB to start"
    hint = "Free some room, or set PENSTOCK_HOME to a directory on another disk."


class NodeUnknown(PenstockError):
    code = "PEN-2017"
    fault = Fault.CALLER
    exit_code = Exit.NOT_FOUND
    text = "there is no node {node!r} in this fleet"
    hint = "Its nodes are: {known}."


class FleetChanged(PenstockError):
    code = "PEN-2018"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "cluster {cluster} was made as {made}, now {asked} is asked for"
    hint = "Start it as it was made, or begin anew with `penstock reset` (that deletes its data)."


class StillRunning(PenstockError):
    code = "PEN-2019"
    fault = Fault.CALLER
    text = "{what} cannot be done while {running} runs"
    hint = "Stop the fleet first with: penstock down"


class CapabilityMissing(PenstockError):
    code = "PEN-2022"
    fault = Fault.CALLER
    exit_code = Exit.DENIED
    text = "{feature} needs {capability} on cluster {cluster}, which it lacks: {reason}"
    hint = "{way_out}"


class AdoptedUnknown(PenstockError):
    code = "PEN-2020"
    fault = Fault.CALLER
    exit_code = Exit.NOT_FOUND
    text = "no adopted cluster is called {name!r}"
    hint = "Adopted are: {known}. Adopt one with: penstock fleet adopt <name> --bootstrap <host:port>"


class AdoptedTwice(PenstockError):
    code = "PEN-2021"
    fault = Fault.CALLER
    text = "{name!r} is adopted already, as the cluster {kafka_id}; {bootstrap} is {other}"
    hint = "Choose another name, or let go of the first with: penstock fleet abandon {name}"


class AdoptedNotEmpty(PenstockError):
    code = "PEN-2027"
    fault = Fault.CALLER
    text = "{name!r} is not empty: it holds {count} topics and groups ({shown})"
    hint = "Give the tenant a cluster that holds nothing, or delete what nobody needs there."


class MetricsUnreachable(PenstockError):
    code = "PEN-2023"
    fault = Fault.UPSTREAM
    retriable = True
    exit_code = Exit.UNHEALTHY
    text = "no metrics from {address}: {reason}"
    hint = "Check that the node runs with the metrics agent and that the port is reachable."


class StopTimedOut(PenstockError):
    code = "PEN-2024"
    fault = Fault.UPSTREAM
    exit_code = Exit.UNHEALTHY
    text = "{nodes} did not end within {seconds:.0f} s and had to be killed"
    hint = "Its data is safe: the node recovers its log at the next start, which takes a little longer."


class ClusterUnknown(PenstockError):
    code = "PEN-2025"
    fault = Fault.CALLER
    exit_code = Exit.NOT_FOUND
    text = "there is no cluster {cluster!r} in this fleet"
    hint = "Its clusters are: {known}."


class PlatformKeyLost(PenstockError):
    code = "PEN-2026"
    fault = Fault.CALLER
    text = "{path} is gone, and {node} holds data whose passwords come from it"
    hint = "Put the file back from a copy, or begin anew with `penstock reset` (that deletes the data)."
