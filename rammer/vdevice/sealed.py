"""Cache rows in SQLite files that processes share. Each row has a checksum; a damaged file is replaced by a new one."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

Answer = TypeVar("Answer")
Row: TypeAlias = tuple[Any, ...]

WAIT_S = 30.0  # how long to wait for another process that is writing
FORM = 2  # version of the files; older ones have no seals and are created anew
BATCH = 500  # keys per query; SQLite allows 999 and more
# Primary error codes that do not indicate damage: the file may be sound and is kept.
_ENVIRONMENT = (
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
)

_checked: set[tuple[int, int] | None] = set()  # files that this process found undamaged


@dataclass(frozen=True, slots=True)
class SqlTable:
    """A table: its columns with their SQL types. The first `key` columns are the primary key."""

    name: str
    columns: tuple[str, ...]
    key: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.split()[0] for column in self.columns)

    @property
    def schema(self) -> str:
        columns = ", ".join(f"{column} NOT NULL" for column in (*self.columns, "seal TEXT"))
        return f"CREATE TABLE {self.name} ({columns}, PRIMARY KEY ({', '.join(self.names[: self.key])})) WITHOUT ROWID"

    def seal(self, row: Row) -> str:
        """Return a hash of the table's name and a row's values and types, which detects damage and exchanged rows."""
        return hashlib.blake2b(repr((self.name, *row)).encode(errors="replace"), digest_size=8).hexdigest()


class Transaction:
    """The reads and writes of one transaction. Raises sqlite3.DatabaseError on damage."""

    def __init__(self, database: sqlite3.Connection, is_checked: bool) -> None:
        self._database, self.is_checked = database, is_checked

    def select(self, table: SqlTable, fixed: Row = (), last: Iterable[str] | None = None) -> list[Row]:
        """Return rows whose key begins with `fixed`, continued by one of `last` if given."""
        where = [f"{name} = ?" for name in table.names[: len(fixed)]]
        query = f"SELECT {', '.join(table.names)}, seal FROM {table.name}"
        if last is None:
            return self._rows(table, query + " WHERE " * bool(where) + " AND ".join(where), fixed)
        found, wanted = [], list(dict.fromkeys(last))
        for start in range(0, len(wanted), BATCH):
            batch = wanted[start : start + BATCH]
            among = f"{table.names[len(fixed)]} IN ({', '.join('?' * len(batch))})"
            found += self._rows(table, f"{query} WHERE {' AND '.join([*where, among])}", (*fixed, *batch))
        return found

    def _rows(self, table: SqlTable, query: str, arguments: Sequence[str]) -> list[Row]:
        rows = []
        for *values, seal in self._database.execute(query, arguments):
            rows.append(tuple(values))
            if table.seal(rows[-1]) != seal:
                raise sqlite3.DatabaseError(f"a row of {table.name} has another content than it was stored with")
        return rows

    def insert(self, table: SqlTable, rows: Iterable[Row]) -> None:
        """Insert rows, replacing those of equal keys.

        The first insert of a process checks the whole file, because a damaged one may hide stored rows.
        """
        if not self.is_checked and (found := self._database.execute("PRAGMA quick_check(1)").fetchone()) != ("ok",):
            raise sqlite3.DatabaseError(str(found))
        self.is_checked = True
        statement = f"INSERT OR REPLACE INTO {table.name} VALUES ({', '.join('?' * (len(table.columns) + 1))})"
        self._database.executemany(statement, [(*row, table.seal(row)) for row in rows])


class SealedFile:
    """Tables of a cache in one file. Its loss costs only recomputation.

    A damaged file, or one of a newer version, is renamed with a warning, and a new one begun. One damaged row condemns
    the file because others may be lost or hidden.
    """

    def __init__(self, path: Path, tables: Sequence[SqlTable]) -> None:
        self.path, self._tables = path, tables

    def read(self, action: Callable[[Transaction], Answer], otherwise: Callable[[Exception], Answer]) -> Answer:
        """Run a transaction that only selects.

        `otherwise` answers if the file is unusable: a full or read-only disk, a lock.
        """
        return self._use("BEGIN", action, otherwise)

    def write(self, action: Callable[[Transaction], Answer], otherwise: Callable[[Exception], Answer]) -> Answer:
        """Run a transaction that also inserts, excluding other processes. `otherwise` as for `read`."""
        return self._use("BEGIN IMMEDIATE", action, otherwise)

    def _use(
        self, begin: str, action: Callable[[Transaction], Answer], otherwise: Callable[[Exception], Answer]
    ) -> Answer:
        for attempt in range(2):
            opened = _identity(self.path)
            try:
                with closing(self._open()) as database, database:
                    database.execute(begin)
                    transaction = Transaction(database, is_checked=opened in _checked)
                    answer = action(transaction)
            except (sqlite3.Error, UnicodeError, OSError, MemoryError) as error:
                if attempt or not self._is_damage(error):
                    return otherwise(error)
                if opened == _identity(self.path):  # else another process has replaced it
                    self._move_aside(str(error))
            else:
                if transaction.is_checked:
                    _checked.add(_identity(self.path))
                return answer
        raise AssertionError("unreachable")

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self.path, timeout=WAIT_S, isolation_level=None)
        try:
            database.text_factory = lambda data: data.decode(errors="replace")  # the seal then fails
            database.execute("PRAGMA synchronous = OFF")  # damage by a power cut is detected
            database.execute("PRAGMA cell_size_check = ON")
            if _form(database) != FORM:
                self._begin(database)
            made = {sql for (sql,) in database.execute("SELECT sql FROM sqlite_master")}
            if not made >= {table.schema for table in self._tables}:  # another type changes what a column stores
                raise sqlite3.DatabaseError("its tables have other columns")
        except BaseException:
            database.close()
            raise
        return database

    def _begin(self, database: sqlite3.Connection) -> None:
        """Create the tables of a new file, or of one of an older version, whose rows have no seals."""
        database.execute("PRAGMA journal_mode = WAL")  # readers go on while one process writes
        with database:
            database.execute("BEGIN IMMEDIATE")
            form = _form(database)
            if form > FORM:
                raise sqlite3.DatabaseError(f"its form is {form}, not {FORM}")
            if form < FORM:  # and no other process has been here
                for table in self._tables:
                    database.execute(f"DROP TABLE IF EXISTS {table.name}")
                    database.execute(table.schema)
                database.execute(f"PRAGMA user_version = {FORM}")

    def _is_damage(self, error: Exception) -> bool:
        """Return whether an error indicates damaged contents. Errors of Python's own module have no code."""
        if not isinstance(error, sqlite3.Error):
            return isinstance(error, UnicodeError)
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if code & 0xFF == sqlite3.SQLITE_READONLY:  # a damaged header may say so, too
            return os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK)
        return code == sqlite3.SQLITE_IOERR_SHORT_READ or code & 0xFF not in _ENVIRONMENT

    def _move_aside(self, why: str) -> None:
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
        for suffix in ("", "-wal", "-shm", "-journal"):  # SQLite would replay them into the new file
            part = self.path.with_name(self.path.name + suffix)
            with suppress(FileNotFoundError):
                part.replace(aside.with_name(aside.name + suffix))
        warnings.warn(
            f"the cache {self.path} was damaged ({why}); moved to {aside.name}, beginning a new one",
            RuntimeWarning,
            stacklevel=5,
        )


def _form(database: sqlite3.Connection) -> int:
    (form,) = database.execute("PRAGMA user_version").fetchone()
    return int(form)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of the file that has this name now."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
