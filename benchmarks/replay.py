"""Compare the schedules of two commits: do their generators make the same ones? Known as: process replay.

python -m benchmarks.replay OLD NEW [--quick] [--models alexnet,today_vad] [--specs amx,sm_90]

A commit is a revision, or "." for this checkout as it is. For models of the catalog on several vDevices, each commit
writes the candidates of every operation as values, in order: name, loops, stages, packing, threads, instruction. It
emits, compiles and runs nothing. A commit's dump stays in benchmarks/results/replay for the next comparison.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, TypeAlias

import click

from benchmarks.compare.before import CHILD, HERE, checkout, revision_of
from benchmarks.models import catalog
from benchmarks.models.store import Scale
from rammer.errors import RammerError, did_you_mean

DUMPS = HERE / "benchmarks" / "results" / "replay"
# target, arch, device, precision: what is not here is priced by its data sheet
SPECS: dict[str, tuple[str, str, int | None, str]] = {
    "amx": ("cpu", "x86-64-amx", 8, "bf16"),
    "avx512": ("cpu", "x86-64-avx512", 2, "fp32"),
    "avx2": ("cpu", "x86-64-avx2", 4, "fp32"),
    "sm_90": ("cuda", "sm_90", None, "tf32"),
    "gc2": ("ipu", "gc2:8", None, "fp32"),  # with few tiles: kernels are chosen by the bytes of each task
}
QUICK = (
    "resnext29_grouped",
    "nasnet_cifar",
    "alexnet:full",
    "lstm_tc_lstm:full",
    "seq2seq_unrolled",
    "today_vad",
    "today_whisper_decoder",
    "today_dual_path_1",
    "today_mobilenet_v2",
    "today_ghostnet",
    "today_vit_tiny",
    "today_minilm_32",
    "today_llama_32",
    "today_dlrm",
    "light_squeezenet",
)
FULL = ("alexnet", "resnext29", "lstm_tc_lstm", "seq2seq_lstm", "today_resnet18", "today_minilm_32")

Key: TypeAlias = tuple[str, str, str]  # spec, model, operator
Candidates: TypeAlias = Sequence[Sequence[str]]


class Difference(NamedTuple):
    """The first candidate of an operation that differs: its place, and what both commits have there."""

    key: Key
    place: int
    old: Sequence[str] | None
    new: Sequence[str] | None

    def __str__(self) -> str:
        spec, model, operator = self.key
        lines = [f"{spec}, {model}, operator {operator!r}, candidate {self.place}:"]
        for which, found in (("old", self.old), ("new", self.new)):
            lines += [f"  {which}: {found[0] if found else 'none'}", *(f"    {text}" for text in (found or ())[1:])]
        return "\n".join(lines)


def differences(old: Mapping[Key, Candidates], new: Mapping[Key, Candidates]) -> list[Difference]:
    """The first differing candidate of each operation, in the order of `old`."""
    found = []
    for key in dict.fromkeys((*old, *new)):
        one, other = old.get(key, ()), new.get(key, ())
        if one != other or (key in old) != (key in new):
            same = (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
            place = next(same, min(len(one), len(other)))
            found.append(Difference(key, place, *(c[place] if place < len(c) else None for c in (one, other))))
    return found


def read(path: Path) -> dict[Key, Candidates]:
    """A dump, by spec, model and operator."""
    with gzip.open(path, "rt") as file:
        rows = [json.loads(line) for line in file]
    return {(row["spec"], row["model"], row["operator"]): row["kernels"] for row in rows}


def models(names: Iterable[str]) -> dict[str, str]:
    """Paths of ONNX files by NAME or NAME:SCALE; a model without a scale is small. Raises RammerError."""
    found = {}
    for text in names:
        name, _, scale = text.partition(":")
        found[text] = str(catalog.prepare(name, 1, _scale(scale or "small")).built.path)
    return found


def _scale(text: str) -> Scale:
    if text not in ("small", "full"):
        raise RammerError(f"{text!r} is no scale", hint="small or full")
    return "full" if text == "full" else "small"


def dump(revision: str, asked: Mapping[str, object]) -> Path:
    """The candidates of a commit, made unless they are known. Raises RammerError if its process fails."""
    mark = sha256((CHILD.read_text() + json.dumps(asked)).encode()).hexdigest()[:8]
    made = DUMPS / f"{'checkout' if revision == '.' else revision_of(revision)[:12]}-{mark}.jsonl.gz"
    if made.exists() and revision != ".":
        return made
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rammer-replay-")))
        root = HERE if revision == "." else stack.enter_context(checkout(revision))
        (folder / "asked.json").write_text(json.dumps(asked))
        environment = {**os.environ, "PYTHONPATH": str(root), "RAMMER_CACHE_DIR": str(folder)}  # no machine's numbers
        command = [sys.executable, "-P", str(CHILD), "schedules", str(folder), str(folder / "asked.json")]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RammerError(f"{revision}: its process ended: {done.stderr.strip()[-1000:]}")
        DUMPS.mkdir(parents=True, exist_ok=True)
        shutil.move(folder / "schedules.jsonl.gz", made)
    return made


@click.command()
@click.argument("old")
@click.argument("new")
@click.option("--quick", is_flag=True, help=f"{len(QUICK)} models instead of all.")
@click.option("--models", "names", default="", help="NAME or NAME:full, comma-separated, instead.")
@click.option("--specs", default=",".join(SPECS), show_default=True)
@click.option("--show", default=1, show_default=True, help="How many differences are shown.")
def main(old: str, new: str, quick: bool, names: str, specs: str, show: int) -> None:
    """Compare the candidate schedules of commits OLD and NEW. Exit code 1: they differ."""
    every = (*catalog.names(), *(f"{name}:full" for name in FULL))
    chosen = names.split(",") if names else QUICK if quick else every
    for spec in (given := specs.split(",")):
        if spec not in SPECS:
            raise RammerError(f"no spec {spec!r}", hint=did_you_mean(spec, SPECS) or f"known: {', '.join(SPECS)}")
    asked = {"models": models(chosen), "specs": {spec: SPECS[spec] for spec in given}}
    found = [read(dump(revision, asked)) for revision in (old, new)]
    differing = differences(*found)
    for difference in differing[:show]:
        click.echo(str(difference))
    count = sum(map(len, found[1].values()))
    click.echo(f"{len(found[1])} operations, {count} candidates; {len(differing)} operations differ")
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
