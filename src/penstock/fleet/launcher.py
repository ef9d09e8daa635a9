"""Generate the Java class that starts the metrics exporter and then Kafka in one JVM.

The exporter is meant to run as a `-javaagent`, but it uses nothing that only agents have. As an agent it
would slow down every start: the JVM would load the bytes of every class it maps from the class-data
archive, and the exporter's own classes could not be archived. So the class calls it directly:

    package penstock;
    public final class Launcher {
        public static void main(String[] arguments) throws Exception {
            io.prometheus.jmx.JavaAgent.premain(System.getProperty("penstock.metrics"), null);
            kafka.Kafka.main(arguments);
        }
    }

A machine that runs Kafka may have no Java compiler, so the class file is assembled here (Java Virtual
Machine Specification, chapter 4).
"""

from __future__ import annotations

import calendar
import hashlib
import io
import os
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from struct import pack
from typing import Final

from penstock.model.errors.fleet import DirectoryNotWritable

MAIN_CLASS: Final = "penstock.Launcher"
METRICS_PROPERTY: Final = "penstock.metrics"  # [host:]port:rule file

_CLASS_VERSION = 61  # Java 17, the oldest supported
_PUBLIC, _STATIC, _FINAL, _SUPER = 0x0001, 0x0008, 0x0010, 0x0020
_LDC, _INVOKESTATIC, _ACONST_NULL, _ALOAD_0, _RETURN = 0x12, 0xB8, 0x01, 0x2A, 0xB1
_OF_MAIN = "([Ljava/lang/String;)V"
_OF_PROPERTY = "(Ljava/lang/String;)Ljava/lang/String;"
_OF_PREMAIN = "(Ljava/lang/String;Ljava/lang/instrument/Instrumentation;)V"
_WRITTEN = (1980, 1, 1, 0, 0, 0)  # the oldest time a jar can store
_WRITTEN_AT = calendar.timegm(_WRITTEN)


def launcher_path(directory: Path) -> Path:
    """Its path, named after its content, so that class path and archive change with it."""
    return directory / f"launcher-{hashlib.sha256(launcher_jar()).hexdigest()[:8]}.jar"


def ensure_launcher(directory: Path) -> None:
    """Write the launcher's jar unless it is already there and intact."""
    path = launcher_path(directory)
    try:
        if path.exists() and path.read_bytes() == launcher_jar():
            return
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            fresh = Path(scratch) / path.name
            fresh.write_bytes(launcher_jar())
            # A class-data archive checks the modification time of every jar, so it is always the same.
            os.utime(fresh, (_WRITTEN_AT, _WRITTEN_AT))
            fresh.replace(path)
    except OSError as error:
        raise DirectoryNotWritable(directory=directory, reason=error.strerror or error) from error


@cache
def launcher_jar() -> bytes:
    """The jar; reproducible byte for byte."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as jar:
        entry = zipfile.ZipInfo(f"{MAIN_CLASS.replace('.', '/')}.class", _WRITTEN)
        jar.writestr(entry, _launcher_class())
    return buffer.getvalue()


class _Constants:
    """A class file's constant pool: unique entries, numbered from one."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def text(self, text: str) -> int:
        return self._number(pack(">BH", 1, len(text)) + text.encode("ascii"))

    def type(self, name: str) -> int:
        return self._number(pack(">BH", 7, self.text(name.replace(".", "/"))))

    def string(self, text: str) -> int:
        return self._number(pack(">BH", 8, self.text(text)))

    def method(self, owner: str, name: str, signature: str) -> int:
        named = self._number(pack(">BHH", 12, self.text(name), self.text(signature)))
        return self._number(pack(">BHH", 10, self.type(owner), named))

    def as_bytes(self) -> bytes:
        return pack(">H", len(self._numbers) + 1) + b"".join(self._numbers)

    def _number(self, entry: bytes) -> int:
        return self._numbers.setdefault(entry, len(self._numbers) + 1)


def _launcher_class() -> bytes:
    constants = _Constants()
    body = _body(_instructions(constants))
    main = pack(">HHH", _PUBLIC | _STATIC, constants.text("main"), constants.text(_OF_MAIN))
    main += pack(">HHI", 1, constants.text("Code"), len(body)) + body
    this, parent = constants.type(MAIN_CLASS), constants.type("java.lang.Object")
    head = pack(">IHH", 0xCAFE_BABE, 0, _CLASS_VERSION) + constants.as_bytes()
    head += pack(">HHH", _PUBLIC | _FINAL | _SUPER, this, parent)
    no_interfaces, no_fields, one_method, no_attributes = (pack(">H", count) for count in (0, 0, 1, 0))
    return head + no_interfaces + no_fields + one_method + main + no_attributes


def _instructions(constants: _Constants) -> bytes:
    get_property = constants.method("java.lang.System", "getProperty", _OF_PROPERTY)
    premain = constants.method("io.prometheus.jmx.JavaAgent", "premain", _OF_PREMAIN)
    main = constants.method("kafka.Kafka", "main", _OF_MAIN)
    return b"".join(
        [
            pack(">BB", _LDC, constants.string(METRICS_PROPERTY)),
            pack(">BH", _INVOKESTATIC, get_property),
            pack(">B", _ACONST_NULL),  # the instrumentation, which the exporter does not use
            pack(">BH", _INVOKESTATIC, premain),
            pack(">B", _ALOAD_0),  # the arguments of main
            pack(">BH", _INVOKESTATIC, main),
            pack(">B", _RETURN),
        ]
    )


def _body(instructions: bytes) -> bytes:
    """The Code attribute. It has no exception handlers and, without branches, no StackMapTable."""
    stack_max, locals_max, no_handlers, no_attributes = 2, 1, 0, 0
    return (
        pack(">HHI", stack_max, locals_max, len(instructions))
        + instructions
        + pack(">HH", no_handlers, no_attributes)
    )
