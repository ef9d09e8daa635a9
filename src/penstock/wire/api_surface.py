"""Print which kinds of name each Kafka API can carry, or the plans of one API.

    python -m penstock.wire.api_surface            # every API, version and direction, as Markdown
    python -m penstock.wire.api_surface Fetch 16   # the plans of one version, op by op

See docs/wire-plans.md.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from penstock.model.errors import PenstockError
from penstock.wire.definitions import load
from penstock.wire.plans import Direction, plan, surface_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.wire.definitions import Definitions


def markdown(definitions: Definitions) -> Iterator[str]:
    yield "| key | API | versions | direction | kinds of name |"
    yield "|---|---|---|---|---|"
    for key, api, versions, direction, kinds in surface_table(definitions):
        yield f"| {key} | {api} | {versions} | {direction} | {', '.join(kinds) or '–'} |"


def main(arguments: Sequence[str]) -> int:
    match arguments:
        case []:
            lines = list(markdown(load()))
        case [api, version] if version.isdigit():
            try:
                key = load().api_key(api)
                lines = [plan(key, int(version), direction).listing() for direction in Direction]
            except PenstockError as error:
                sys.stderr.write(f"error: {error}\n  {error.advice}\n")
                return int(error.exit_code)
        case _:
            sys.stderr.write("usage: python -m penstock.wire.api_surface [API VERSION]\n")
            return 2
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
