"""Our programs by the names that peers have (`rammer-stationary@x2@tf32`), compiled before a GPU is at hand."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rammer
from rammer import config
from rammer.errors import RammerError, did_you_mean
from rammer.vdevice.cuda import device
from rammer.vdevice.simt.runtime.clocks import profiled
from rammer.vdevice.simt.runtime.streams import SOURCE, checked_streams

POLICIES = {  # of a peer whose name begins so
    "rammer": "auto",
    "rammer-sequential": "sequential",
    "rammer-wavefront": "wavefront",
    "rammer-stationary": "stationary",
    "rammer-graphturbo": "graphturbo",
    "rammer-graphturbo-apart": "graphturbo:results=off",
}
FLAGS = {  # behind an @ of a peer's name: what it stands for
    "x2": "two vEUs on a multiprocessor",
    "c8": "clusters of eight multiprocessors, with messages",
    "tf32": "operands of products rounded to tf32",
    "bf16": "operands of products rounded to bf16",
    "before": "compiled by the rammer of the folder --before",
}
PRECISIONS = ("tf32", "bf16")
GROUPINGS = ("x2", "c8")  # of an arch's name, behind a colon


class Build(NamedTuple):
    """What a program is compiled with."""

    policy: str
    flags: tuple[str, ...] = ()

    @property
    def precision(self) -> str:
        return next((f for f in self.flags if f in PRECISIONS), "fp32")

    def arch(self, gpu: str) -> str:
        return ":".join([gpu, *(f for f in self.flags if f in GROUPINGS)])

    def file(self, folder: str | Path, model: Path) -> Path:
        """Where the program lies once it is compiled."""
        return Path(folder, "-".join([model.stem, self.policy, *(self.flags or ["fp32"])]) + ".rammer")


def build_of(peer: str) -> Build | None:
    """What a peer's program is compiled with; None if it is not ours. Raises RammerError for an unknown flag."""
    base, *flags = peer.split("@")
    if unknown := next((f for f in flags if f not in FLAGS), None):
        known = ", ".join(f"@{name} ({what})" for name, what in FLAGS.items())
        raise RammerError(f"peer {peer!r}: no flag {unknown!r}", hint=did_you_mean(unknown, FLAGS) or known)
    if base not in POLICIES:
        if flags:
            raise RammerError(f"peer {peer!r}: only our own take flags", hint=f"one of {', '.join(POLICIES)}")
        return None
    return Build(POLICIES[base], tuple(sorted(flags)))


def builds_of(peers: Sequence[str]) -> dict[Build, str]:
    """Distinct programs of some peers, each with the first peer that wants it."""
    found: dict[Build, str] = {}
    for peer in peers:
        if build := build_of(peer):
            found.setdefault(build, peer)
    return found


def prepare(model: Path, folder: Path, gpu: str, peers: Sequence[str], before: Path | None = None) -> None:
    """Compile the programs of these peers, and the texts with clocks beside them, for a GPU that is not here.

    `before`: a checkout of another commit, for peers @before. Raises RammerError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for build in builds_of(peers):
        target = build.file(folder, model)
        if target.exists():
            continue
        if "before" in build.flags:
            _compile_by(before, model, target, gpu, build)
            continue
        with compiled(model, build, arch=build.arch(gpu)) as program:
            clocked(program)
            part = target.with_suffix(f".{os.getpid()}")
            program.save(part)
            part.replace(target)  # who waits for the file never sees half of it


def clocked(program: rammer.Program) -> None:
    """Compile the text with clocks, so that it is in the cache when slots are timed. Raises RammerError."""
    text = profiled(program.image.file(SOURCE).decode())
    device.PLATFORM.compile(text, str(checked_streams(program.image).header["arch"]))


def compiled(model: Path, build: Build, *, tune_seconds: float | None = 0, **where: Any) -> rammer.Program:
    """Compile a model. Raises RammerError."""
    precision = build.precision
    return rammer.compile(model, "cuda", policy=build.policy, precision=precision, tune_seconds=tune_seconds, **where)


def _compile_by(source: Path | None, model: Path, target: Path, gpu: str, build: Build) -> None:
    """Compile with the rammer of another folder, in a process of its own. Raises RammerError."""
    if source is None:
        raise RammerError("a peer @before needs a checkout of another commit", hint="--before DIR")
    command = [sys.executable, "-m", "rammer", "compile", str(model.resolve()), "-o", str(target.resolve())]
    command += ["--target", "cuda", "--arch", build.arch(gpu), "--policy", build.policy]
    command += ["--precision", build.precision, "--tune-seconds", "0"]
    cache = config.private_dir(config.cache_dir() / "before")  # caches of other versions have another form
    variables = {"RAMMER_CACHE_DIR": str(cache), "PYTHONPATH": str(source.resolve())}
    environment = {**os.environ, **variables}
    environment.pop("CUDA_VISIBLE_DEVICES", None)  # it may open no device where all are hidden
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RammerError(f"{source}: {done.stderr.strip()[-600:]}")


def mark_of(folder: Path, model: str) -> Path:
    """A file that says that all is compiled that will be, of NAME or NAME:BATCH."""
    return folder / f"{model.replace(':', '_b')}.done"


def awaited(folder: Path, model: str, seconds: float) -> bool:
    """Wait until a model's programs are there, compiled beside this process."""
    stop = time.monotonic() + seconds
    while not mark_of(folder, model).exists():
        if time.monotonic() > stop:
            return False
        time.sleep(0.2)
    return True
