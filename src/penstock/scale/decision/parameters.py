"""The trigger metadata as a table, for `penstock scale parameters` and `docs/scale.md`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.scale.decision.policy import PARAMETERS

if TYPE_CHECKING:
    from penstock.scale.decision.policy import Parameter


def parameter_rows() -> list[dict[str, str]]:
    return [{"name": each.name, "default": _default(each), "meaning": _meaning(each)} for each in PARAMETERS]


def parameters_table() -> str:
    """The table as Markdown."""
    lines = ["| metadata | default | meaning |", "|---|---|---|"]
    lines += [f"| `{row['name']}` | {row['default']} | {row['meaning']} |" for row in parameter_rows()]
    return "\n".join(lines) + "\n"


def _default(parameter: Parameter) -> str:
    if parameter.default is None:
        return "required"
    if parameter.default in ("", ()):
        return ""
    value = f"{parameter.default:g}" if isinstance(parameter.default, float) else str(parameter.default)
    return f"{value} {parameter.unit}".rstrip() if parameter.kind in ("number", "count") else value


def _meaning(parameter: Parameter) -> str:
    choices = f" ({', '.join(parameter.choices)})" if parameter.choices else ""
    return parameter.help + choices
