"""The class that every node starts with: the metrics exporter first, then Kafka, in one JVM.

The exporter is made to be a `-javaagent`. It needs nothing that an agent gets, but its mere
presence has the JVM fetch the bytes of every class that it maps from the class-data archive, and
keeps the exporter's own classes out of the archive. So it is called like any other code:

    package penstock;
    public final class Launcher {
        public static void main(String[] arguments) throws Exception {
            io.prometheus.jmx.JavaAgent.premain(System.getProperty("penstock.metrics"), null);
            kafka.Kafka.main(arguments);
        }
    }

Who runs Kafka may have no Java compiler, so this class is put together here, constant by constant
(Java Virtual Machine Specification, chapter 4).
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

_CLASS_VERSION = 61  # Java 17, the oldest that we start nodes with
_PUBLIC, _STATIC, _FINAL, _SUPER = 0x0001, 0x0008, 0x0010, 0x0020
_LDC, _INVOKESTATIC, _ACONST_NULL, _ALOAD_0, _RETURN = 0x12, 0xB8, 0x01, 0x2A, 0xB1
_OF_MAIN = "([Ljava/lang/String;)V"
_OF_PROPERTY = "(Ljava/lang/String;)Ljava/lang/String;"
_OF_PREMAIN = "(Ljava/lang/String;Ljava/lang/instrument/Instrumentation;)V"
_WRITTEN = (1980, 1, 1, 0, 0, 0)  # the oldest time that a jar can hold
_WRITTEN_AT = calendar.timegm(_WRITTEN)


def launcher_path(directory: Path) -> Path:
    """Named for its content: class path and archive change with it, like with any other jar."""
    return directory / f"launcher-{hashlib.sha256(launcher_jar()).hexdigest()[:8]}.jar"


def ensure_launcher(directory: Path) -> None:
    """Put the launcher's jar there, unless it stands there whole."""
    path = launcher_path(directory)
    try:
        if path.exists() and path.read_bytes() == launcher_jar():
            return
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            fresh = Path(scratch) / path.name
            fresh.write_bytes(launcher_jar())
            # A class-data archive remembers the time of every jar: one written again is the same jar.
            os.utime(fresh, (_WRITTEN_AT, _WRITTEN_AT))
            fresh.replace(path)
    except OSError as error:
        raise DirectoryNotWritable(directory=directory, reason=error.strerror or error) from error


@cache
def launcher_jar() -> bytes:
    """The same bytes each time."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as jar:
        entry = zipfile.ZipInfo(f"{MAIN_CLASS.replace('.', '/')}.class", _WRITTEN)
        jar.writestr(entry, _launcher_class())
    return buffer.getvalue()


class _Constants:
    """A class file's constant pool: every entry stands in it once, numbered from one."""

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
            pack(">B", _ACONST_NULL),  # the instrumentation, which the exporter never looks at
            pack(">BH", _INVOKESTATIC, premain),
            pack(">B", _ALOAD_0),  # our own arguments
            pack(">BH", _INVOKESTATIC, main),
            pack(">B", _RETURN),
        ]
    )


def _body(instructions: bytes) -> bytes:
    """The method's code: no handlers, and without a branch there is no StackMapTable to write."""
    stack_max, locals_max, no_handlers, no_attributes = 2, 1, 0, 0
    return (
        pack(">HHI", stack_max, locals_max, len(instructions))
        + instructions
        + pack(">HH", no_handlers, no_attributes)
    )
