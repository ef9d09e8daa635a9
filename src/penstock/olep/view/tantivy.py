"""Views in SQLite whose text is searched by tantivy, for those who want its index instead of FTS5.

Rows, past and position are those of `penstock.olep.view.sqlite`; only words live elsewhere, in an
index of tantivy's beside the file. Two stores have no common transaction, so one of them decides: an
entry of the index has a number, and counts if SQLite has the entry too. Words are committed before the
rows they belong to and removed after them. The index therefore knows all that counts, and what it knows
beyond that (a batch that was killed in between) is not found, and removed by the next claim before its
numbers are given out again.

Each commit that has text syncs the index's files, which takes tens of milliseconds: made for large
batches. FTS5 takes more events a second (`bench.views`).
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors.settings import ExtraMissing
from penstock.model.errors.views import ViewFailed
from penstock.olep.view.sqlite import SqliteReader, SqliteView, SqliteViews

try:
    import tantivy
except ImportError as error:  # the store is an extra
    raise ExtraMissing(what="a view searched by tantivy", module="tantivy", extra="olep-tantivy") from error

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from penstock.olep.position import Position
    from penstock.olep.table import Key, Table
    from penstock.olep.view import Stretch
    from penstock.olep.view.projection import Projection
    from penstock.olep.view.sqlite_sql import Statements

HEAP_BYTES: Final = 50_000_000  # of the writer, before it writes a segment
WIDER: Final = 4  # how many times more hits are asked for when too few of them count
_TOKENIZER: Final = "folded"


@dataclass(frozen=True, slots=True)
class TantivyViews(SqliteViews):
    """As `SqliteViews`, with a directory `<view>.<generation>.words` beside each file."""

    def open(self, projection: Projection, topic_id: str, partitions: int, *, generation: int) -> TantivyView:
        self.directory.mkdir(parents=True, exist_ok=True)
        return TantivyView(self, projection, topic_id, partitions, generation)

    def drop(self, view: str, generation: int) -> None:
        SqliteViews.drop(self, view, generation)
        shutil.rmtree(self.path(view, generation).with_suffix(".words"), ignore_errors=True)


class Words:
    """The index of one table: numbered entries of text."""

    def __init__(self, directory: Path, columns: Sequence[str]) -> None:
        self._fields = [f"text_{column}" for column in columns]
        directory.mkdir(parents=True, exist_ok=True)
        builder = tantivy.SchemaBuilder()
        builder.add_integer_field("id", indexed=True, fast=True)
        for field in self._fields:
            builder.add_text_field(field, tokenizer_name=_TOKENIZER)
        self._schema = builder.build()
        self._index = tantivy.Index(self._schema, path=str(directory))
        # As FTS5's `unicode61 remove_diacritics`: words without case and accents.
        simple = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
        folded = simple.filter(tantivy.Filter.lowercase()).filter(tantivy.Filter.ascii_fold()).build()
        self._index.register_tokenizer(_TOKENIZER, folded)
        self._tokens: Callable[[str], list[str]] = folded.analyze

    def change(self, removed: Iterable[int], added: Iterable[tuple[Any, ...]], *, above: int | None) -> None:
        """Durable when it returns. Entries `above` a number are removed first.

        A writer holds a lock of its own, so none is kept: SQLite's lock says who may write."""
        writer = self._index.writer(HEAP_BYTES, 1)
        try:
            if above is not None:
                beyond = tantivy.Query.range_query(
                    self._schema, "id", tantivy.FieldType.Integer, lower_bound=above, include_lower=False
                )
                writer.delete_documents_by_query(beyond)
            for number in removed:
                writer.delete_documents_by_term("id", number)
            for number, *texts in added:
                document = tantivy.Document()
                document.add_integer("id", number)
                for field, text in zip(self._fields, texts):
                    if text is not None:
                        document.add_text(field, text)
                writer.add_document(document)
            writer.commit()
        finally:
            writer.wait_merging_threads()

    def searcher(self) -> Any:
        self._index.reload()
        return self._index.searcher()

    def found(self, searcher: Any, text: str, limit: int) -> list[int]:
        """Numbers of entries that have all these words, best first. Nothing in `text` is syntax."""
        asked = [tokens for word in text.split() if (tokens := self._tokens(word))]
        if not asked:
            return []
        each = [
            (
                tantivy.Occur.Must,
                tantivy.Query.boolean_query(
                    [(tantivy.Occur.Should, self._in_field(field, tokens)) for field in self._fields]
                ),
            )
            for tokens in asked
        ]
        hits = searcher.search(tantivy.Query.boolean_query(each), limit=limit, count=False).hits
        return [*searcher.fast_field_values("id", [address for _, address in hits])]

    def _in_field(self, field: str, tokens: list[str]) -> Any:
        if len(tokens) == 1:
            return tantivy.Query.term_query(self._schema, field, tokens[0])
        phrase: list[str | tuple[int, str]] = [*tokens]
        return tantivy.Query.phrase_query(self._schema, field, phrase)


class TantivyView(SqliteView):
    fts = False

    def __init__(
        self, views: SqliteViews, projection: Projection, topic_id: str, partitions: int, generation: int
    ) -> None:
        super().__init__(views, projection, topic_id, partitions, generation)
        directory = self.path.with_suffix(".words")
        try:
            self._words = {name: Words(directory / name, text) for name, text in projection.text.items()}
        except (OSError, ValueError) as error:
            self.close()
            raise ViewFailed(view=self.name, reason=error) from error
        self._added: dict[str, list[tuple[Any, ...]]] = {}  # by the transaction under way
        self._pruned: dict[str, list[int]] = {}  # likewise
        self._gone: dict[str, list[int]] = {}  # SQLite has forgotten them
        self._unclear = set(self._words)  # tables whose index may know more than SQLite

    def claim(self) -> dict[int, int]:
        found = super().claim()
        self._unclear = set(self._words)
        self._db.execute("begin immediate")
        try:
            for name, index in self._words.items():
                if self._text_ids[name] and index.searcher().num_docs == 0:  # it was lost
                    index.change((), self._db.execute(self._statements[name].text_all), above=None)
        except (OSError, ValueError) as error:
            raise ViewFailed(view=self.name, reason=error) from error
        finally:
            self._db.execute("rollback")
        return found

    def commit(self, stretches: Sequence[Stretch]) -> None:
        try:
            super().commit(stretches)
        except BaseException:
            self._unclear = set(self._words)
            self._added, self._pruned = {}, {}
            raise
        for name in self._added:
            self._unclear.discard(name)
            self._gone.pop(name, None)
        for name, numbers in self._pruned.items():
            self._gone.setdefault(name, []).extend(numbers)
        self._added, self._pruned = {}, {}

    def _add_words(self, statements: Statements, words: Sequence[tuple[Any, ...]]) -> None:
        if words:
            self._added.setdefault(statements.table.name, []).extend(words)

    def _remove_words(self, statements: Statements, words: Sequence[tuple[Any, ...]]) -> None:
        self._pruned.setdefault(statements.table.name, []).extend(row[0] for row in words)

    def _seal(self) -> None:
        for name, words in self._added.items():
            # Numbers are given out in order, so nothing that counts stands above the first of these.
            above = words[0][0] - 1 if name in self._unclear else None
            try:
                self._words[name].change(self._gone.get(name, ()), words, above=above)
            except (OSError, ValueError) as error:
                raise ViewFailed(view=self.name, reason=error) from error

    def _made_reader(self, db: sqlite3.Connection, position: Position, as_of: bool) -> TantivyReader:
        return TantivyReader(db, position, self._statements, as_of, self._words)


class TantivyReader(SqliteReader):
    """As a reader of SQLite; its searches go to the index, and what SQLite does not show is left out."""

    def __init__(
        self,
        db: sqlite3.Connection,
        position: Position,
        statements: Mapping[str, Statements],
        as_of: bool,
        words: Mapping[str, Words],
    ) -> None:
        super().__init__(db, position, statements, as_of)
        self._words = words
        # After the transaction of the rows began: the index knows at least as much.
        self._searchers: dict[str, Any] = {}

    def search(self, table: Table[Any], text: str, *, limit: int = 20) -> list[tuple[int, Key]]:
        """As of SQLite: (partition, key) of rows that have all the words, best first."""
        index, statements = self._words[table.name], self._statements[table.name]
        searcher = self._searchers.get(table.name)
        if searcher is None:
            searcher = self._searchers[table.name] = index.searcher()
        query = statements.text_visible_as_of if self._as_of else statements.text_visible
        asked = limit
        while True:
            numbers = index.found(searcher, text, asked)
            shown = {row[0]: row[1:] for row in self._db.execute(query, (json.dumps(numbers),))}
            found = [shown[number] for number in numbers if number in shown]
            if len(found) >= limit or len(numbers) < asked:
                break
            asked *= WIDER
        single = len(table.key) == 1
        return [(row[0], row[1] if single else row[1:]) for row in found[:limit]]
