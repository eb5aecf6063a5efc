"""Caches that are damaged, cut, or filled by somebody else: what they said is computed again, and never believed."""

from __future__ import annotations

import json
import sqlite3
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, fields
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rammer import config
from rammer.vdevice import sealed
from rammer.vdevice.cpu.tune.calibrate import CALIBRATIONS, Calibration, keep_calibration, known_calibration
from rammer.vdevice.profiles import ProfileStore, profile_store
from rammer.vdevice.toolchain.objects import ObjectStore

TIMES = {f"recipe {n:064x}": 0.5 + n for n in range(40)}
VERDICTS = {f"some {n:064x}": f"proven\0\0{'' if n % 3 else 'x' * n}" for n in range(40)}


class Caches:
    """Both files, filled; what they say must be what was said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.profiles = ProfileStore(folder / "profiles.sqlite", "a cpu", "zig")
        self.objects = ObjectStore(folder)
        self.fill()
        self.files = [folder / "profiles.sqlite", folder / "index.sqlite"]
        self.sound = [file.read_bytes() for file in self.files]

    def fill(self) -> None:
        self.profiles.put(TIMES)
        self.profiles.put_verdicts(VERDICTS)
        self.names = {}
        for n in range(2):
            keys = [f"{i} of {n}" for i in range(20)]
            self.names |= dict.fromkeys(keys, self.objects.add(keys, b"code %d" % n))

    def restore(self) -> None:
        for file in self.folder.glob("*.sqlite*"):
            file.unlink()
        for file, data in zip(self.files, self.sound, strict=True):
            file.write_bytes(data)

    def wrong(self) -> int:
        """How many entries are missing; fails if one is another than was stored."""
        found: tuple[dict[str, Any], ...] = (
            self.profiles.get([*TIMES, "another"]),
            self.profiles.verdicts([*VERDICTS, "another"]),
            self.objects.find([*self.names, "another"]),
            {time.kernel: time.us for time in self.profiles.times()},
        )
        for known, stored in zip(found, (TIMES, VERDICTS, self.names, TIMES), strict=True):
            assert known.items() <= stored.items()
            assert all(type(value) is type(stored[key]) for key, value in known.items())
        return sum(map(len, (TIMES, VERDICTS, self.names, TIMES))) - sum(map(len, found))


@pytest.fixture
def caches(tmp_path: Path) -> Caches:
    return Caches(tmp_path)


def bytes_changed(data: bytearray, random: Random) -> None:
    for _ in range(random.choice((1, 3, 30, 300, 3000))):
        data[random.randrange(len(data))] = random.randrange(256)


def header_changed(data: bytearray, random: Random) -> None:
    for _ in range(random.choice((1, 2, 5))):
        data[random.randrange(120)] = random.randrange(256)


def schema_changed(data: bytearray, random: Random) -> None:
    at = data.find(b"CREATE TABLE")
    for _ in range(random.choice((1, 2, 5))):
        data[at + random.randrange(150)] = random.randrange(256)


def cut(data: bytearray, random: Random) -> None:
    del data[random.randrange(len(data)) :]


def shifted(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data))
    data[at:at] = random.randbytes(random.choice((1, 7, 4096)))


def zeroed(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data))
    data[at : at + 4096] = bytes(len(data[at : at + 4096]))


@pytest.mark.parametrize("damage", [bytes_changed, header_changed, schema_changed, cut, shifted, zeroed])
def test_damaged_files(caches: Caches, damage: Callable[[bytearray, Random], None]) -> None:
    """What is still found is right, and after it was computed again everything is found."""
    missed = 0
    for seed in range(60):
        sealed._checked.clear()  # as another process begins
        random = Random(seed)
        caches.restore()
        for file in caches.files:
            data = bytearray(file.read_bytes())
            damage(data, random)
            file.write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            missed += caches.wrong() > 0
            caches.fill()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert caches.wrong() == 0, seed
    assert missed > 10


def test_a_column_of_another_type_is_found_before_rows_are_stored(caches: Caches) -> None:
    """Such a column changes what is stored, so a row would be called damaged after its file was filled again."""
    sealed._checked.clear()
    profiles = caches.files[0]
    data = profiles.read_bytes()
    changed = data.replace(b"stored_at REAL", b"stored_at TEXT")
    assert changed != data
    caches.restore()
    profiles.write_bytes(changed)
    with pytest.warns(RuntimeWarning, match="its tables have other columns"):
        caches.fill()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert caches.wrong() == 0


VALUES = ["'abc'", "-1e300", "1e300", "0", "7", "x'00'", "CAST(x'84ff' AS TEXT)", "''", "'broken'", "''||x'ff00ff'"]
TABLES = {"rtask": "us", "verdict": "wrong", "kernels": "object"}
CHANGES = [
    *(f"UPDATE {table} SET {column} = {value}" for table, column in TABLES.items() for value in VALUES),
    *(f"UPDATE {table} SET seal = {value}" for table in TABLES for value in VALUES[:7]),
    # another row's value, and everything of another row but its key
    *(f"UPDATE {t} SET {c} = (SELECT {c} FROM {t} ORDER BY 1 DESC LIMIT 1)" for t, c in TABLES.items()),
    *(f"UPDATE {t} SET ({c}, seal) = (SELECT {c}, seal FROM {t} LIMIT 1)" for t, c in TABLES.items()),
    "UPDATE rtask SET stored_at = 'later'",
    "UPDATE rtask SET device = x'61206370'",
]


@pytest.mark.parametrize("change", CHANGES)
def test_changed_rows(caches: Caches, change: str) -> None:
    """Rows that say something else, or in another type, are forgotten with their file, and a warning says so."""
    for file in caches.files:
        with closing(sqlite3.connect(file)) as database, database:
            names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            if change.split()[1] in names:
                assert database.execute(change).rowcount
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert caches.wrong()
    assert any("was damaged" in str(one.message) for one in said) or "device" in change
    caches.fill()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert caches.wrong() == 0
    assert not said or "device" in change


def test_missing_tables(caches: Caches) -> None:
    for file in caches.files:
        with closing(sqlite3.connect(file)) as database, database:
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                database.execute(f"DROP TABLE {name}")
    with pytest.warns(RuntimeWarning, match="was damaged"):
        assert caches.wrong()
    caches.fill()
    assert caches.wrong() == 0


def test_an_older_file_is_begun_anew(tmp_path: Path) -> None:
    """Entries without seals are forgotten, and nothing is said: the file is sound."""
    with closing(sqlite3.connect(tmp_path / "profiles.sqlite")) as database, database:
        database.execute("CREATE TABLE rtask (device, toolchain, kernel, us, stored_at)")
        database.execute("INSERT INTO rtask VALUES ('d', 't', 'k', 1.0, 1.0)")
        database.execute("PRAGMA user_version = 1")
    with config.override(RAMMER_CACHE_DIR=str(tmp_path)):
        tmp_path.chmod(0o700)
        store = profile_store("d", "t")
        assert store.get(["k"]) == {}
        store.put({"k": 2.0})
        assert store.get(["k"]) == {"k": 2.0}


def calibration() -> Calibration:
    numbers = {field.name: 10.5 + n for n, field in enumerate(fields(Calibration))}
    return Calibration(**{**numbers, "cores": 2})  # type: ignore[arg-type]


def test_damaged_calibrations(tmp_path: Path) -> None:
    """Usual numbers count then, with a warning."""
    found, path = calibration(), tmp_path / CALIBRATIONS
    with config.override(RAMMER_CACHE_DIR=str(tmp_path)):
        keep_calibration("a cpu", found)
        keep_calibration("another", found)
        assert known_calibration("a cpu") == found
        sound = path.read_bytes()
        entry = json.loads(sound)
        changed = [json.dumps({**entry, "a cpu": {**entry["a cpu"], name: v}}).encode() for name, v in CHANGED_NUMBERS]
        others = [b"[" * 100_000, b"[3]", b"{}x", b"\xff\xfe", b'{"a cpu": 3}', b'{"a cpu": null}', sound[:-9]]
        for data in (*changed, *others):
            path.write_bytes(data)
            with pytest.warns(RuntimeWarning, match="calibrat"):
                assert known_calibration("a cpu") is None
        for seed in range(300):
            random, data = Random(seed), bytearray(sound)
            for _ in range(random.choice((1, 2, 9))):
                data[random.randrange(len(data))] = random.randrange(256)
            path.write_bytes(data)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert known_calibration("a cpu") in (None, found)
        keep_calibration("a cpu", found)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert known_calibration("a cpu") == found
            assert known_calibration("a third one") is None


CHANGED_NUMBERS = [
    (name, value) for name in ("gflops", "cores") for value in (-1.0, 1e9, "3", None, [1.0], True, float("nan"))
] + [("ghz", asdict(calibration())["ghz"] + 0.1)]
