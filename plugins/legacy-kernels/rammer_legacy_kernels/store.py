"""Store the user's imported kernels, one JSON file each, in a separate folder. compile() picks from them.

Only records verified on this machine are offered. A claim inside of a foreign file is ignored.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rammer import config, files
from rammer.errors import ArtifactError, RammerError, did_you_mean
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer_legacy_kernels.record import MAX_BYTES, Record, from_json, to_json
from rammer_legacy_kernels.verify import Verified

FORM = 1  # version of verification results; kernels verified in another form are verified again


@dataclass(frozen=True, slots=True)
class Stored:
    """A record in the store. `verified`: it was executed here, and its tiles and syncs are known."""

    record: Record
    verified: bool
    max_error: float = 0.0

    @property
    def name(self) -> str:
        return self.record.name


def store_folder() -> Path:
    """Return the folder: RAMMER_KERNELS_DIR or the platform's. Does not create it."""
    if text := config.get("RAMMER_KERNELS_DIR"):
        return Path(text)
    if sys.platform == "darwin":
        return Path(os.path.expanduser("~/Library/Application Support/rammer/kernels"))  # not all users have a home
    return Path(os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")) / "rammer" / "kernels"


def stored_kernels() -> list[Stored]:
    """Return all records of the store, by name; skip an unreadable one with a warning.

    Raises RammerError if others may write to the folder, as its content is compiled and run.
    """
    if not store_folder().is_dir():
        return []
    found = []
    for path in sorted(config.private_dir(store_folder()).glob("*.json")):
        info = path.stat()
        try:
            found.append(_load(path, info.st_mtime_ns, info.st_size))
        except RammerError as error:
            warnings.warn(f"imported kernel {path} is not used: {error.what}", RuntimeWarning, stacklevel=2)
    return found


def add(record: Record, verified: Verified | None = None) -> Stored:
    """Store a record, replacing one of the same name. Raises RammerError."""
    stored = Stored(verified.record, True, verified.max_error) if verified else Stored(record, False)
    evidence = {"form": FORM, "digest": stored.record.digest, "max_error": stored.max_error} if verified else None
    text = json.dumps({"record": to_json(stored.record), "verified": evidence}, indent=1)
    folder = config.private_dir(store_folder())
    files.write(folder / f"{record.name}.json", text, raises=ArtifactError)
    return stored


def find(name: str) -> Stored:
    """Return a record by name. Raises ArtifactError."""
    known = {s.name: s for s in stored_kernels()}
    if name not in known:
        hint = did_you_mean(name, known) or "`rammer kernels list` lists them"
        raise ArtifactError(f"no imported kernel {name!r}", hint=hint)
    return known[name]


def remove(name: str) -> None:
    """Delete a record. Raises ArtifactError."""
    find(name)
    (store_folder() / f"{name}.json").unlink()


def imported(operation: Operation, spec: VDeviceSpec, language: str) -> Iterator[RKernel]:
    """Yield verified kernels of the store for an operation: equal expressions, so equal kinds, attributes and types.

    A kernel reads and writes plain row-major tensors, and has at most as many threads as a vEU.
    """
    for stored in stored_kernels():
        record = stored.record
        fits = stored.verified and record.launch.threads <= spec.max_threads and record.inputs == operation.inputs
        if fits and record.expr == operation.expr:
            yield record.rkernel(operation, language, spec.subgroup_size)


@lru_cache(maxsize=1024)
def _load(path: Path, modified_ns: int, nbytes: int) -> Stored:
    """Read a file of the store; an unchanged file is read once."""
    if nbytes > 2 * MAX_BYTES:
        raise ArtifactError(f"it has {nbytes} bytes")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        evidence = data["verified"]
        record = from_json(data["record"], checked=evidence is not None)
        known = evidence is not None and (evidence["form"], evidence["digest"]) == (FORM, record.digest)
        return Stored(record, known, float(evidence["max_error"]) if known else 0.0)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(f"it is damaged: {error}", hint="import it again") from None
