"""An object store: a directory or an S3 bucket. Every write is conditional, so nothing is overwritten.

A file store syncs each object and its directories before a write returns. Calls have time limits and a
bounded number of retries; then they raise `StoreUnavailable`.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, S3Store

from penstock.model.errors.backup import (
    ObjectExists,
    ObjectMissing,
    StoreUnavailable,
    StoreUnconditional,
)
from penstock.model.settings_reader import HIDDEN
from penstock.model.settings_table import Setting
from penstock.tier.format import joined

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from obstore.store import ClientConfig, RetryConfig, S3Config

    from penstock.model.settings_reader import Section

CALL_SECONDS_MAX: Final = 60.0  # one call with its retries
CONNECT_SECONDS_MAX: Final = 5.0
RETRIES_MAX: Final = 5
CALLS_MAX: Final = 32  # at the same time
REASON_CHARS_MAX: Final = 300
OBJECT_BYTES_MAX: Final = 256 << 20  # read at once
DELETE_BATCH: Final = 100
LIST_PAGE: Final = 1000
DIRECTORIES_MAX: Final = 100_000  # remembered as durable
PROBE: Final = "probe"

SETTINGS: Final = (
    Setting("kind", "file | s3", "Kind of store.", "file"),
    Setting("directory", "directory", "Where a file store keeps its objects."),
    Setting("bucket", "text", "Bucket of an S3 store."),
    Setting("prefix", "text", "First part of every key.", ""),
    Setting("endpoint", "URL", "Address of an S3 server; unset: Amazon's."),
    Setting("region", "text", "Region of the bucket.", "us-east-1"),
    Setting("access_key", "text", "Access key; unset: as the environment has it."),
    Setting("password", "secret", "Secret key."),
    Setting("password_file", "file", "File with the secret key, instead."),
)
KEYS: Final = tuple(one.key for one in SETTINGS)
S3_KEYS: Final = ("bucket", "endpoint", "region", "access_key", "password", "password_file")

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class StoreSettings:
    kind: str
    prefix: str = ""
    directory: Path | None = None
    bucket: str = ""
    endpoint: str | None = None
    region: str = "us-east-1"
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)


def read_store_settings(section: Section) -> StoreSettings:
    kind = section.one_of("kind", ("file", "s3"), "file")
    prefix = (section.optional_text("prefix") or "").strip("/")
    if kind == "file":
        for key in S3_KEYS:
            if section.values.get(key) is not None:
                raise section.invalid(key, "expected only with `kind: s3`", HIDDEN)
        directory = section.path("directory")
        if directory is None:
            raise section.invalid("directory", "expected a directory")
        return StoreSettings(kind, prefix, directory)
    access_key = section.optional_text("access_key")
    return StoreSettings(
        kind, prefix, None, section.text("bucket"), section.optional_text("endpoint"),
        section.text("region", "us-east-1"), access_key,
        section.secret("password") if access_key is not None else None,
    )  # fmt: skip


class StoredObject(NamedTuple):
    key: str  # without the store's prefix
    size: int
    modified_ms: int


class Store:
    """Keys are relative to the store's prefix."""

    def __init__(self, settings: StoreSettings) -> None:
        self.prefix = settings.prefix
        self._root = settings.directory
        self.name = str(settings.directory) if settings.directory else f"s3://{settings.bucket}"
        self._slots = asyncio.Semaphore(CALLS_MAX)
        self._durable: set[Path] = set()  # directories whose names are on disk
        self._store: LocalStore | S3Store
        if settings.directory is not None:
            root = settings.directory.absolute()
            try:
                made = [one for one in (root, *root.parents) if not one.exists()]
                self._store = LocalStore(root, mkdir=True)
                for one in made:
                    _sync(one.parent)
            except (OSError, BaseError) as failure:
                raise StoreUnavailable(store=self.name, reason=str(failure)) from failure
        else:
            self._store = _s3(settings)

    async def create(self, key: str, data: bytes | memoryview) -> bool:
        """Write a new object. False if it exists already with this content; raises if with another."""
        path, created = joined(self.prefix, key), True
        try:
            await self._call(
                lambda: obstore.put(self._store, path, bytes(data), mode="create", use_multipart=False)
            )
        except AlreadyExistsError:
            if await self.read(key) != bytes(data):
                raise ObjectExists(key=key, store=self.name) from None
            created = False
        if self._root is not None:
            # Also one that exists: the attempt that created it may have died before it was on disk.
            try:
                await self._call(partial(self._make_durable, self._root, self._root / path))
            except FileNotFoundError:
                raise ObjectMissing(key=key, store=self.name) from None
        return created

    async def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        path = joined(self.prefix, key)
        try:
            if length is not None:
                return await self._call(
                    lambda: bytes(obstore.get_range(self._store, path, start=start, length=length))
                )
            result = await self._call(lambda: obstore.get(self._store, path))
            if result.meta["size"] > OBJECT_BYTES_MAX:
                reason = f"{key} has {result.meta['size']} bytes, more than {OBJECT_BYTES_MAX}"
                raise StoreUnavailable(store=self.name, reason=reason)
            return await self._call(lambda: bytes(result.bytes()))
        except (NotFoundError, FileNotFoundError):
            raise ObjectMissing(key=key, store=self.name) from None

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """Every object below a prefix, which ends at a `/`, by key within each page."""
        start = joined(self.prefix, prefix)
        stream = obstore.list(self._store, prefix=start or None, chunk_size=LIST_PAGE)
        drop = len(self.prefix) + 1 if self.prefix else 0
        while True:
            try:
                page = await self._call(lambda: next(stream, None))
            except (NotFoundError, FileNotFoundError):
                return
            if page is None:
                return
            for row in sorted(page, key=lambda row: row["path"]):
                modified_ms = int(row["last_modified"].timestamp() * 1000)
                yield StoredObject(row["path"][drop:], row["size"], modified_ms)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; one that is absent is no error. Only the sweeper may."""
        for at in range(0, len(keys), DELETE_BATCH):
            for key in keys[at : at + DELETE_BATCH]:
                try:
                    await self._call(partial(obstore.delete, self._store, joined(self.prefix, key)))
                except (NotFoundError, FileNotFoundError):
                    continue

    async def probe(self) -> None:
        """Raise unless the store refuses to overwrite. Leaves one small object."""
        await self.create(PROBE, b"1")
        try:
            await self.create(PROBE, b"2")
        except ObjectExists:
            return
        raise StoreUnconditional(store=self.name)

    def _make_durable(self, root: Path, path: Path) -> None:
        """Sync an object, its name, and the names of directories that are new."""
        _sync(path)
        _sync(path.parent)
        directory = path.parent
        while directory != root and directory not in self._durable:
            _sync(directory.parent)
            if len(self._durable) < DIRECTORIES_MAX:
                self._durable.add(directory)
            directory = directory.parent

    async def _call(self, call: Callable[[], V]) -> V:
        """Call in a thread: obstore's own coroutines abort the process if it exits soon after an error."""
        try:
            async with self._slots, asyncio.timeout(CALL_SECONDS_MAX):
                return await asyncio.to_thread(call)
        except (AlreadyExistsError, NotFoundError, FileNotFoundError):
            raise
        except TimeoutError:
            reason = f"no response within {CALL_SECONDS_MAX:.0f} s"
            raise StoreUnavailable(store=self.name, reason=reason) from None
        except (BaseError, OSError) as failure:
            reason = " ".join(str(failure).partition("Debug source")[0].split())[:REASON_CHARS_MAX]
            raise StoreUnavailable(store=self.name, reason=reason) from failure


def _s3(settings: StoreSettings) -> S3Store:
    config: S3Config = {"region": settings.region, "conditional_put": "etag"}
    if settings.endpoint:
        config["endpoint"] = settings.endpoint
    if settings.access_key and settings.secret_key:
        config["access_key_id"], config["secret_access_key"] = settings.access_key, settings.secret_key
    client: ClientConfig = {
        "timeout": timedelta(seconds=CALL_SECONDS_MAX / 2),
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS_MAX),
        "allow_http": (settings.endpoint or "").startswith("http://"),
    }
    retries: RetryConfig = {
        "max_retries": RETRIES_MAX,
        "retry_timeout": timedelta(seconds=CALL_SECONDS_MAX / 2),
    }
    try:
        return S3Store(settings.bucket, config=config, client_options=client, retry_config=retries)
    except (BaseError, ValueError) as failure:
        raise StoreUnavailable(store=f"s3://{settings.bucket}", reason=str(failure)) from failure


def _sync(path: Path) -> None:
    """Make a file durable, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
