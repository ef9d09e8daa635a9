"""Hypothesis strategies for the values of any version of a message, from its definition."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from hypothesis import strategies as st

from penstock.wire.codegen.decoder import present
from penstock.wire.definitions import STRUCT, load

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from penstock.wire.definitions import Field

    # A narrower strategy for the values of the field at a path; None if any value will do.
    Narrow = Callable[[str], st.SearchStrategy[Any] | None]

SIZES = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
UUIDS = st.one_of(st.just(UUID(int=0)), st.binary(min_size=16, max_size=16).map(lambda raw: UUID(bytes=raw)))
TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
LONG_TEXT = st.integers(120, 140).map(lambda n: "x" * n)  # around the length at which a varint grows
BYTES = st.binary(max_size=6)

SCALARS: dict[str, st.SearchStrategy[Any]] = {
    **{kind: st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for kind, bits in SIZES.items()},
    "uint16": st.integers(0, 2**16 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "uuid": UUIDS,
    "string": st.one_of(TEXTS, TEXTS, LONG_TEXT),
    "bytes": BYTES,
    "records": BYTES,
}


@cache
def message_values(name: str, version: int, narrow: Narrow = lambda path: None) -> st.SearchStrategy[Any]:
    """Complete values of a message: every field of the version."""
    return struct_values(load().message(name).fields, version, name, narrow)


def struct_values(
    fields: tuple[Field, ...], version: int, path: str, narrow: Narrow
) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            field.name: field_values(field, version, f"{path}.{field.name}", narrow)
            for field in present(fields, version)
        }
    )


def field_values(field: Field, version: int, path: str, narrow: Narrow) -> st.SearchStrategy[Any]:
    narrowed = narrow(path)
    if narrowed is not None:
        one = narrowed
    elif field.kind == STRUCT:
        one = struct_values(field.fields, version, path, narrow)
    else:
        one = SCALARS[field.kind]
    values = st.lists(one, max_size=2) if field.array else one
    return st.one_of(st.none(), values) if version in field.nullable else values


def random_values(fields: tuple[Field, ...], version: int, rng: Random) -> dict[str, Any]:
    """As `struct_values`, without shrinking and much quicker: for millions of messages."""
    return {field.name: _random_field(field, version, rng) for field in present(fields, version)}


def _random_field(field: Field, version: int, rng: Random) -> Any:
    if version in field.nullable and rng.random() < 0.2:
        return None
    if field.array:
        return [_random_one(field, version, rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    return _random_one(field, version, rng)


def _random_one(field: Field, version: int, rng: Random) -> Any:
    kind = field.kind
    if kind == STRUCT:
        return random_values(field.fields, version, rng)
    if kind in SIZES:
        return rng.getrandbits(SIZES[kind]) - 2 ** (SIZES[kind] - 1)
    if kind in ("uint16", "uint32"):
        return rng.getrandbits(int(kind[4:]))
    if kind == "string":
        return "".join(rng.choices("abcdef-ü", k=rng.randrange(12)))
    if kind in ("bytes", "records"):
        return rng.randbytes(rng.randrange(20))
    return {"bool": rng.random() < 0.5, "float64": rng.random(), "uuid": UUID(int=rng.getrandbits(128))}[kind]
