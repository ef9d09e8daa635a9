"""Where a command serves its metrics: one flag, read in one way."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from penstock.model.errors.settings import SettingInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

Metrics = Annotated[
    str | None, Parameter(help="Serve metrics for Prometheus at this host:port.", show_default="none")
]


@contextmanager
def metrics_at(
    address: str | None, serving: Callable[[str, int], AbstractContextManager[int]]
) -> Iterator[None]:
    """Served meanwhile; `serving` raises OSError if it cannot."""
    if address is None:
        yield
        return
    host, colon, port = address.rpartition(":")
    with ExitStack() as stack:
        try:
            if not (host and colon and port.isdecimal()):
                raise ValueError("expected host:port")
            stack.enter_context(serving(host, int(port)))
        except (OSError, OverflowError, ValueError) as error:
            raise SettingInvalid(
                where="flags", key="--metrics", value=address, expected=str(error)
            ) from error
        yield
