"""Measure everything about an NVIDIA GPU in one run: microbenchmarks, all models against their peers, two policies.

`benchmarks/gpu/h200.sh`, or `python -m benchmarks.gpu.run [--models …] [--peers …]`. `--dry-run` tests the code on a
machine without a GPU: small models, rammer's programs on the emulator, torch on the CPU. Its numbers mean nothing.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.gpu import micro as gpu_micro
from benchmarks.gpu import programs as gpu_programs
from benchmarks.gpu.micro_results import Micro
from benchmarks.gpu.peers import PEERS, WARM_UP, Results, Task, Worker, peer_of
from benchmarks.gpu.programs import build_of, builds_of, mark_of
from benchmarks.models import catalog
from benchmarks.models.catalog import Entry
from benchmarks.models.store import Arrays, Scale
from rammer import files
from rammer.errors import DeviceError, RammerError, did_you_mean
from rammer.vdevice.cuda.driver import find_gpu, probe
from rammer.vdevice.cuda.spec import choose_gpu
from rammer.vdevice.simt.gpu import Gpu

RESULTS = Path(__file__).parents[1] / "results"
ROUNDS = 4  # visits of each peer, in turns
DRY_MODELS = ("lstm_tc_lstm", "alexnet")
DRY_PEERS = ("rammer", "rammer-sequential", "rammer@tf32", "torch", "torch-graph")
DRY = "DRY RUN: an emulator and a CPU. Errors are real, times mean nothing."
OWN = ("rammer",)
BASE = "rammer-sequential"
EXACT = ("torch", "torch-graph", "torch-max", "jax")  # what is compared with ours in float32


def available(peers: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Those whose packages are here, and why the others are left out."""
    missing = {p: f"{peer_of(p).needs} is not installed" for p in peers if not _importable(peer_of(p).needs)}
    return [p for p in peers if p not in missing], missing


def _importable(package: str) -> bool:
    return not package or importlib.util.find_spec(package) is not None


def state_of_gpu() -> str:
    """Clocks and driver as nvidia-smi tells them; nothing is changed. Empty without it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    asked = "name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw"
    argv = [program, f"--query-gpu={asked}", "--format=csv,noheader"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False).stdout.strip()


def reference(name: str, scale: Scale, inputs: Arrays, outputs: Arrays) -> Arrays:
    """The outputs in float64, by torch on the CPU; called in a process of its own."""
    import torch

    from benchmarks.models.build import find

    module = find(name).build_module(scale).double()
    with torch.inference_mode():
        given = (torch.from_numpy(v) for v in inputs.values())
        value = module(*(v.double() if v.is_floating_point() else v for v in given))
    values = value if isinstance(value, (tuple, list)) else [value]
    return {output: np.asarray(each.numpy()) for output, each in zip(outputs, values, strict=True)}


def reference_of(entry: Entry, scale: Scale) -> tuple[Arrays, str]:
    """Reference outputs, and what they are; kept beside the model. Those of the file if torch has none in float64."""
    if not entry.module or not _importable("torch"):
        return entry.built.outputs, "float32: no torch module of this model, or no torch"
    kept = entry.built.path.with_suffix(".fp64.npz")
    if not (kept.exists() and kept.stat().st_mtime >= entry.built.path.stat().st_mtime):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            asked = pool.submit(reference, entry.module, scale, entry.built.inputs, entry.built.outputs)
            try:
                values = asked.result()
            except Exception as failure:  # whatever torch raises must not stop the other models
                reason = f"{type(failure).__name__}: {failure}"
                return entry.built.outputs, f"float32: torch has no float64 result of {entry.module}: {reason[:300]}"
        np.savez(kept, allow_pickle=False, **values)
    with np.load(kept, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}, "float64"


def compare(
    entry: Entry,
    workers: dict[str, Worker],
    gpu: int | None,
    scale: Scale,
    runs: int,
    load_timeout_s: float,
    programs: str,
    slots: str,
) -> tuple[dict[str, Results], str]:
    """All peers of a model: loaded one after the other, visited in turns there and back, and stopped."""
    try:
        wanted, kind = reference_of(entry, scale)
        for peer, worker in workers.items():
            task = Task(peer, str(entry.built.path), entry.module, scale, gpu, programs, slots)
            worker.load(task, wanted, 0 if gpu is None else WARM_UP, load_timeout_s)
        for number in range(ROUNDS):
            order = list(workers) if number % 2 == 0 else list(workers)[::-1]
            for peer in order:
                workers[peer].ask(max(runs // ROUNDS, 1), load_timeout_s)
        for worker in workers.values():
            worker.ask(None, load_timeout_s)
    finally:
        for worker in workers.values():
            worker.stop()
    return {peer: worker.results for peer, worker in workers.items()}, kind


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Median, p10 and p90; empty without samples."""
    if not samples:
        return {}
    low, high = np.quantile(samples, (0.1, 0.9))
    return {"median": statistics.median(samples), "p10": float(low), "p90": float(high), "n": len(samples)}


def ratios(models: dict[str, dict[str, Any]], over: Sequence[str], under: Sequence[str]) -> dict[str, float]:
    """By model: the best median of `over` per best median of `under`, where both exist."""
    found = {}
    for name, model in models.items():
        best = []
        for group in (over, under):
            times = [model["peers"][p]["warm"].get("median") for p in group if p in model["peers"]]
            best.append(min((t for t in times if t), default=None))
        if best[0] and best[1]:
            found[name] = best[0] / best[1]
    return found


def entry_json(entry: Entry, found: dict[str, Results], kind: str, gbps: float | None) -> dict[str, Any]:
    """A model's part of the result file."""
    peers = {}
    for peer, results in found.items():
        times = {what: summary(getattr(results, f"{what}_ms")) for what in ("warm", "flushed", "latency")}
        peers[peer] = {**times, **results.as_json()}
    floor = entry.work.weight_bytes / (gbps * 1e6) if gbps else None  # every weight read once from device memory
    return {"work": asdict(entry.work), "weights_floor_ms": floor, "reference": kind, "peers": peers}


def micro_table(found: Sequence[Micro]) -> Table:
    """Microbenchmarks, with the reason of those that failed."""
    table = Table("microbenchmark", "median", "least", "", box=None)
    for m in found:
        shown = (
            ("", "", m.failed) if m.median is None or m.least is None else (f"{m.median:.3f}", f"{m.least:.3f}", m.unit)
        )
        table.add_row(m.what, *shown)
    return table


def model_table(name: str, model: dict[str, Any]) -> Table:
    """One model: medians in ms, relative errors, and reasons."""
    floor = model["weights_floor_ms"]
    title = f"{name}" + (f", weights from memory once: {floor:.3f} ms" if floor else "")
    title += "" if model["reference"] == "float64" else f" ({model['reference']})"
    columns = ("peer", "warm ms", "p10", "p90", "flushed ms", "call ms", "load s", "error")
    table = Table(*columns, "in rTasks", "between", "scheduling", "", title=title, title_justify="left", box=None)
    for peer, r in model["peers"].items():
        usage = r["notes"].get("usage", {})
        table.add_row(
            peer,
            *(f"{r['warm'][k]:.4f}" if r["warm"] else "" for k in ("median", "p10", "p90")),
            f"{r['flushed']['median']:.4f}" if r["flushed"] else "",
            f"{r['latency']['median']:.4f}" if r["latency"] else "",
            f"{r['load_s']:.1f}" if r["load_s"] else "",
            f"{max(r['errors'].values()):.1e}" if r["errors"] else "",
            f"{usage['in_rtasks']:.1%}" if usage else "",
            f"{usage['between']:.1%}" if usage else "",
            f"{usage['scheduling']:.1%}" if usage else "",
            r["failed"],
        )
    return table


def conclusions(models: dict[str, dict[str, Any]]) -> list[str]:
    """Geometric means over the models that have both sides."""
    lines = []
    for what, over, under in (
        ("rammer, of the best peer in float32", EXACT, OWN),
        ("rammer, of our sequential policy with the same kernels", (BASE,), ("rammer",)),
    ):
        found = ratios(models, over, under)
        if found:
            mean = statistics.geometric_mean(found.values())
            each = ", ".join(f"{n} {r:.2f}" for n, r in found.items())
            lines.append(f"speed of {what}: {mean:.2f} (geometric mean of {len(found)}): {each}")
    return lines


def _chosen(text: str, known: Sequence[str], default: Sequence[str]) -> list[str]:
    names = [n for n in text.split(",") if n]
    for n in names:
        if n not in known:
            raise click.BadParameter(f"{n!r}; {did_you_mean(n, known) or ', '.join(known)}")
    return names or list(default)


def _peers(text: str, default: Sequence[str]) -> list[str]:
    names = [n for n in text.split(",") if n] or list(default)
    try:
        for name in names:
            peer_of(name)
    except RammerError as error:
        raise click.BadParameter(str(error)) from error
    return names


def _models(text: str, default: Sequence[str]) -> list[str]:
    """NAME or NAME:BATCH, of every suite."""
    names = [n for n in text.split(",") if n]
    for name in names:
        _chosen(name.partition(":")[0], catalog.names(), ())
    return names or list(default)


def _prepare(
    console: Console,
    names: Sequence[str],
    peers: Sequence[str],
    folder: Path,
    arch: str,
    dry: bool,
    before: Path | None,
) -> None:
    """Compile where there is time, so that a GPU's first minutes are for measuring."""
    for name in names:
        entry = catalog.named(name, "small" if dry else "full")
        gpu_programs.prepare(entry.built.path, folder, arch, peers, before)
        if not all(map(build_of, peers)):
            reference_of(entry, "small" if dry else "full")
        console.print(f"{name}, {', '.join(peers)}: ready in {folder}", highlight=False)


def _prepare_side_by_side(
    console: Console, names: Sequence[str], peers: Sequence[str], folder: Path, jobs: int, arguments: Sequence[str]
) -> bool:
    """A process for each model and then for each of its programs, `jobs` at a time; whether all went well.

    They share the cores, and end the first models first: who measures those meanwhile waits for `mark_of` each.
    """
    threads = str(max((os.cpu_count() or 1) // jobs, 1))  # each would take all cores, and wait for them in turns
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    others = [p for p in peers if not build_of(p)][:1]

    def one(name: str, peer: str) -> bool:
        command = [sys.executable, "-m", "benchmarks.gpu.run", "--models", name, "--peers", peer, *arguments]
        start = time.perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        said = (done.stderr if done.returncode else done.stdout).strip().splitlines()
        console.print(f"{said[-1] if said else name} ({time.perf_counter() - start:.0f} s)", highlight=False)
        return done.returncode == 0

    def programs(name: str) -> bool:
        """All of a model, when its file is there."""
        first = pool.submit(one, name, (others or ["torch"])[0])
        all_well = all([first.result(), *pool.map(partial(one, name), builds_of(peers).values())])
        mark_of(folder, name).write_text("")
        return all_well

    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool, ThreadPoolExecutor(-(-jobs // 2)) as models:
        return all([*models.map(programs, names)])


def find(dry: bool, number: int) -> Gpu:
    """The GPU; in a dry run the one that is emulated. Raises DeviceError."""
    if dry:
        return choose_gpu("h200")
    answer = probe()
    if not answer.ok:
        raise DeviceError(answer.reason, hint="--dry-run tries the code without one")
    return find_gpu(number)


@click.command()
@click.option("--models", default="", help="Comma-separated, NAME or NAME:BATCH; all of the paper's when empty.")
@click.option("--peers", default="", help=f"Comma-separated, of {', '.join(PEERS)}; all when empty.")
@click.option("--runs", default=200, show_default=True, help="Timed runs per peer and model.")
@click.option("--device", "number", default=0, show_default=True, help="The GPU's number.")
@click.option("--load-timeout", "load_timeout_s", default=300.0, show_default=True, help="Seconds to load and compile.")
@click.option("--dry-run", "dry", is_flag=True, help="Without a GPU: small models on the emulator.")
@click.option("--programs", type=click.Path(path_type=Path), help="Folder of programs that --prepare has compiled.")
@click.option(
    "--prepare", "arch", help="Only compile, for this GPU or arch (h200, sm_90), into --programs: needs no GPU."
)
@click.option("--jobs", default=1, show_default=True, help="Programs that --prepare compiles side by side.")
@click.option("--before", type=click.Path(path_type=Path), help="A checkout of another commit, for peers @before.")
@click.option("--await", "await_s", default=0.0, help="Seconds to wait for a model's programs, compiled meanwhile.")
@click.option("--seconds", default=0.0, help="Begin no model that would end later, by the longest so far; 0: no limit.")
@click.option("--micro/--no-micro", "micro_too", default=True, show_default=True, help="Microbenchmarks come first.")
@click.option("--slots", type=click.Path(path_type=Path), help="Folder for the times of every slot of our programs.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Result file instead of benchmarks/results/.")
def main(
    models: str,
    peers: str,
    runs: int,
    number: int,
    load_timeout_s: float,
    dry: bool,
    programs: Path | None,
    arch: str | None,
    jobs: int,
    before: Path | None,
    await_s: float,
    seconds: float,
    micro_too: bool,
    slots: Path | None,
    output: Path | None,
) -> None:
    """Check, time and print."""
    begin = time.monotonic()
    console = Console(width=None if sys.stdout.isatty() else 200)
    if arch:
        if programs is None:
            raise click.UsageError("--prepare needs a folder: --programs DIR")
        chosen, wanted = _models(models, catalog.paper_names()), _peers(peers, list(PEERS))
        if jobs < 2:
            try:
                _prepare(console, chosen, wanted, programs, arch, dry, before)
            except RammerError as error:
                raise SystemExit(f"{error}") from error
            return
        rest = ["--prepare", arch, "--programs", str(programs), *["--dry-run"] * dry]
        rest += ["--before", str(before)] if before else []
        raise SystemExit(not _prepare_side_by_side(console, chosen, wanted, programs, jobs, rest))
    try:
        gpu = find(dry, number)
    except RammerError as error:
        raise SystemExit(f"no GPU to measure: {error}") from error
    names = _models(models, DRY_MODELS if dry else catalog.paper_names())
    selected, missing = available(_peers(peers, DRY_PEERS if dry else list(PEERS)))
    scale: Scale = "small" if dry else "full"
    now = datetime.datetime.now(datetime.UTC)
    output = output or RESULTS / f"gpu-{now:%Y%m%d-%H%M%S}{'-dry' if dry else ''}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    files.check_new(output)
    console.print(
        DRY if dry else f"{gpu.name}, {gpu.arch}, {gpu.num_multiprocessors} SMs; {state_of_gpu()}", highlight=False
    )
    for peer, reason in missing.items():
        console.print(f"{peer} is left out: {reason}", highlight=False)
    measure = partial(gpu_micro.measure, number, gpu.arch, gpu.num_multiprocessors)
    micro = [] if not micro_too else gpu_micro.compiled(gpu.arch) if dry else measure()
    if micro_too:
        console.print(micro_table(micro))
    gbps = next((m.median for m in micro if m.unit == "GB/s"), None)
    content: dict[str, Any] = {
        "date": now.isoformat(),
        "dry_run": dry,
        "gpu": asdict(gpu),
        "state": {"before": state_of_gpu()},
        "runs": runs,
        "left_out": missing,
        "micro": [asdict(m) for m in micro],
        "hop_costs": gpu_micro.hop_costs(micro),
        "models": {},
    }
    longest = 0.0
    spare: dict[str, Worker] = {}  # of the next model: they import while this one is measured
    for n, name in enumerate(names):
        start = time.monotonic()
        left = seconds - (start - begin) if seconds else float("inf")
        if left < longest:
            content["not_begun"] = names[n:]
            console.print(f"no time is left for {', '.join(names[n:])}", highlight=False)
            break
        try:
            if programs and await_s and not gpu_programs.awaited(programs, name, min(await_s, left)):
                console.print(f"{name}: not all is compiled after {min(await_s, left):.0f} s", highlight=False)
            entry = catalog.named(name, scale)
            workers = spare or {peer: Worker(peer) for peer in selected}
            spare = {peer: Worker(peer) for peer in selected} if names[n + 1 :] else {}
            found, kind = compare(
                entry,
                workers,
                None if dry else number,
                scale,
                runs,
                load_timeout_s,
                str(programs or ""),
                str(slots or ""),
            )
        except RammerError as error:
            console.print(f"{name}: {error}", highlight=False)
            continue
        content["models"][name] = entry_json(entry, found, kind, gbps)
        console.print(model_table(name, content["models"][name]))
        longest = max(longest, time.monotonic() - start)
        content["models"][name]["seconds"] = round(time.monotonic() - start, 1)
        content["state"]["after"] = state_of_gpu()
        files.write(output, json.dumps(content, indent=1))  # after every model, so that an interrupted run keeps them
    for worker in spare.values():
        worker.stop()
    files.write(output, json.dumps(content, indent=1))
    for line in [] if dry else conclusions(content["models"]):
        console.print(line, highlight=False)
    console.print(f"{DRY + ' ' if dry else ''}written to {output}", highlight=False)


if __name__ == "__main__":
    main()
