"""Measure CPU seconds and memory of compiling models for a GPU, which need not be here. Caches are empty.

python -m benchmarks.gpu.compile [alexnet …] [--target cuda] [--arch h100] [--json compiled.json] [--resume]

Each model has a process of its own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.micro.memory import forget_peak, peak_mb
from benchmarks.models import catalog
from rammer.errors import RammerError

LIMIT_S, LIMIT_MB = 60.0, 2048.0


def compile_apart(name: str, target: str, arch: str) -> dict[str, Any]:
    """What compiling a model took, with an empty cache. Raises RammerError with the compiler's reason."""
    path = catalog.prepare(name).built.path
    with tempfile.TemporaryDirectory(prefix="rammer-cold-") as folder:
        environment = {**os.environ, "RAMMER_CACHE_DIR": folder}
        command = [sys.executable, "-m", "benchmarks.gpu.compile", "--one", str(path), target, arch]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RammerError(f"compiling {name} failed: {done.stderr.strip()[-400:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def compile_here(path: str, target: str, arch: str) -> dict[str, Any]:
    """Compile a file here: CPU seconds of this process and its children, and the most memory of one of them, MiB."""
    import rammer

    forget_peak()
    wall, cpu = time.perf_counter(), _cpu_s()
    with tempfile.TemporaryDirectory() as folder, rammer.compile(path, target, arch=arch) as program:
        program.save(Path(folder) / "model.rammer")
        report = program.report()
        children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        return {
            "cpu_s": _cpu_s() - cpu,
            "wall_s": time.perf_counter() - wall,
            "peak_mb": max(peak_mb(), children),
            "rtasks": report.num_rtasks,
            "estimated_ms": report.estimated_us / 1e3,
            "phases_s": report.phases_s,
        }


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@click.command()
@click.argument("models", nargs=-1)
@click.option("--target", default="cuda", show_default=True)
@click.option("--arch", default="h100", show_default=True, help="A model or an arch of the target.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Where to write what was found.")
@click.option("--resume", is_flag=True, help="Keep what the file has.")
@click.option("--one", nargs=3, hidden=True, help="Path, target and arch: compile in this process.")
def main(
    models: tuple[str, ...], target: str, arch: str, output: Path | None, resume: bool, one: tuple[str, str, str] | None
) -> None:
    """Print a line for each of MODELS, or for all, and mark what takes more than a minute or 2 GiB."""
    if one:
        click.echo(json.dumps(compile_here(*one)))
        return
    found: dict[str, Any] = json.loads(output.read_text()) if resume and output and output.exists() else {}
    for name in models or (*catalog.paper_names(), *catalog.today_names(), *catalog.light_names()):
        if name in found:
            continue
        try:
            found[name] = taken = compile_apart(name, target, arch)
        except RammerError as error:
            click.echo(f"{name:28} {error}")
            continue
        over = " OVER" if taken["cpu_s"] > LIMIT_S or taken["peak_mb"] > LIMIT_MB else ""
        click.echo(
            f"{name:28} {taken['cpu_s']:6.1f} CPU s {taken['peak_mb']:6.0f} MiB {taken['rtasks']:7} rTasks{over}"
        )
        if output:
            output.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
