"""Decoding values to rows: whatever its bytes, a value becomes one row or is rejected with a reason."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors.pipeline import JobInvalid
from penstock.pipeline.lake.columns import Evolve, column
from penstock.pipeline.reading.blocks import NewFields, RecordRows, decode_block, new_fields
from penstock.pipeline.reading.json_values import JsonDecoder

UTC_US = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("id", pa.int64()), ("at", UTC_US), ("ms", UTC_US), ("note", pa.string())])
DECODER = JsonDecoder(SCHEMA, millis=frozenset({"ms"}))
GOOD = b'{"id":1,"at":"2024-01-01T00:00:00Z","ms":1700000000000,"note":"a","other":3}'


@pytest.mark.parametrize(
    "bad",
    [
        b"", b" ", b"{", b"}", b"{}{}", b'{}}{"id":1', b'{},"y":{}', b'{"id":2}\n{"id":3}', b"1", b"null",
        b"[]",
        b'"s"', b'{"id":"x"}', b'{"id":1.5}', b'{"note":"\xff"}', b'{"at":"nope"}',
        b'{"at":"2024-01-01T00:00:00"}',
        b'{"id":99999999999999999999}', b'{"note":1}', b'{"note":{"a":1}}', b'{"id":1,"id":2}',
        b"\xef\xbb\xbf{}",
        b'{"note":"\\ud800"}', b'{"note":"a\nb"}', b"NaN", b'{"id":NaN}', b'{"ms":"x"}',
    ],
)  # fmt: skip
def test_a_bad_value_is_rejected_alone(bad: bytes) -> None:
    columns, indices, rejected = decode_block(DECODER, pa.array([GOOD, bad, GOOD, GOOD]))

    assert indices is not None
    assert (indices.to_pylist(), [each.at for each in rejected]) == ([0, 2, 3], [1])
    assert columns[0].to_pylist() == [1, 1, 1]
    assert rejected[0].reason


@pytest.mark.parametrize(
    "good", [b'{"id":\n2}', b' {"id":2} ', b'\n{"id":2,\n\t"x":{"y":[1]}}\n', b'{"note":"\\n","id":2}']
)
def test_whitespace_in_json_does_not_matter(good: bytes) -> None:
    columns, _, rejected = decode_block(DECODER, pa.array([GOOD, good, GOOD]))

    assert (columns[0].to_pylist(), rejected) == ([1, 2, 1], [])


values = st.one_of(
    st.binary(max_size=20),
    st.text(alphabet='{}[]":,1an\n \\', max_size=20).map(str.encode),
    st.integers(-(1 << 63), (1 << 63) - 1).map(lambda n: json.dumps({"id": n, "note": str(n)}).encode()),
)


@given(st.lists(values, min_size=1, max_size=30))
def test_a_block_decodes_like_its_values_one_by_one(block: list[bytes]) -> None:
    """Nothing in one value can change, hide or shift another."""
    alone = [decode_block(DECODER, pa.array([value])) for value in block]

    columns, indices, rejected = decode_block(DECODER, pa.array(block))

    expected = [i for i, (_, _, bad) in enumerate(alone) if not bad]
    assert (indices.to_pylist() if indices is not None else (expected if columns else [])) == expected
    assert [each.at for each in rejected] == [i for i, (_, _, bad) in enumerate(alone) if bad]
    if columns:
        assert columns[0].to_pylist() == [alone[i][0][0][0].as_py() for i in expected]


def test_undeclared_fields_reach_the_driver_by_name_and_type() -> None:
    decoder = JsonDecoder(SCHEMA, millis=frozenset({"ms"}), evolve=Evolve.ADD)

    with pytest.raises(NewFields) as raised:
        decoder.decode(pa.array([b'{"n":{"a":[1],"b":"2024-01-01"},"q":null,"f":1.5}', b'{"t":true}']))

    wrapped = f"org.apache.spark.SparkException: {str(raised.value)!r} at line 7"
    fields = {"n": "struct<`a`: array<bigint>, `b`: string>", "f": "double", "t": "boolean"}
    assert new_fields(str(raised.value)) == fields
    assert new_fields(wrapped) == fields
    assert new_fields("something else") is None


def test_an_object_becomes_a_map_and_anything_else_is_rejected() -> None:
    nested = pa.list_(pa.map_(pa.string(), pa.float64()))
    decoder = JsonDecoder(
        pa.schema([("id", pa.int64()), ("m", pa.map_(pa.string(), pa.int64())), ("n", nested)])
    )
    values = [
        b'{"id":1,"m":{"a":1,"b":null},"n":[{"x":0.5}],"q":{}}',
        b'{"id":2,"m":null}',
        b'{"id":3,"m":[1]}',
    ]

    columns, _, rejected = decode_block(decoder, pa.array(values))

    assert [column.to_pylist() for column in columns] == [
        [1, 2],
        [[("a", 1), ("b", None)], None],
        [[[("x", 0.5)]], None],
    ]
    assert [(each.at, each.reason) for each in rejected] == [
        (2, "list where map<string, int64> was expected")
    ]


def rows_of(
    required: tuple[str, ...], records: list[tuple[bytes | None, bytes | None]]
) -> tuple[list[Any], int]:
    out = pa.schema(
        [*SCHEMA, ("kafka_partition", pa.int32()), ("kafka_offset", pa.int64()), ("kafka_key", pa.binary()),
         ("kafka_deleted", pa.bool_()), ("kafka_value", pa.binary()), ("kafka_error", pa.string())]
    )  # fmt: skip
    block = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([value for _, value in records], pa.binary()),
            "key": pa.array([key for key, _ in records], pa.binary()),
            "partition": pa.array([0] * len(records), pa.int32()),
            "offset": pa.array(range(len(records)), pa.int64()),
            "timestamp": pa.array([0] * len(records), UTC_US),
        }
    )
    counted: list[int] = []
    blocks = RecordRows(DECODER, out, key=True, headers=False, required=required)(
        iter([block]), counted.append
    )
    rows = [row for out_block in blocks for row in out_block.to_pylist()]
    return sorted(rows, key=lambda row: row["kafka_offset"]), sum(counted)


def test_rows_keep_their_origin_and_rejected_records_their_bytes() -> None:
    rows, rejected = rows_of(("kafka_key",), [(b"k", GOOD), (b"k", None), (b"k", b"broken"), (None, GOOD)])

    assert rejected == 2
    assert [row["kafka_deleted"] for row in rows] == [None, True, None, None]
    assert [row["kafka_error"] is None for row in rows] == [True, True, False, False]
    assert rows[2]["kafka_value"] == b"broken"
    assert "key is missing" in rows[3]["kafka_error"]
    assert [row["kafka_offset"] for row in rows] == [0, 1, 2, 3]


def test_a_tombstone_without_its_key_columns_is_rejected() -> None:
    rows, rejected = rows_of(("id",), [(b"k", GOOD), (b"k", None)])

    assert rejected == 1
    assert "cannot be known" in rows[1]["kafka_error"]


@pytest.mark.parametrize(
    ("name", "kind"), [("_id", "bigint"), ("a b", "bigint"), ("a", "int64"), ("a", "map<int,int>")]
)
def test_a_column_that_cannot_be_declared_is_refused(name: str, kind: str) -> None:
    with pytest.raises(JobInvalid):
        column("here", name, kind)
