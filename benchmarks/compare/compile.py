"""Compile one model in a process of its own: `python -m benchmarks.compare.compile MODEL.onnx OUTPUT.rammer`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.micro.memory import forget_peak, peak_mb
from benchmarks.models.store import CACHE
from rammer.errors import RammerError

PROGRAMS = CACHE / "programs"


def compile_apart(model: Path, policy: str, threads: int, cold: bool) -> tuple[Path, dict[str, Any]]:
    """The saved program, and what compiling it took. Raises RammerError with the compiler's reason.

    A cold compilation starts with an empty cache of kernels and times; another one follows that finds them.
    """
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    output = PROGRAMS / f"{model.stem}-{policy}-{threads}.rammer"
    command = [sys.executable, "-m", "benchmarks.compare.compile", str(model), str(output)]
    command += ["--policy", policy, "--threads", str(threads)]
    if not cold:
        return output, {"compile": _run(command, dict(os.environ))}
    with tempfile.TemporaryDirectory(prefix="rammer-cold-") as folder:
        environment = {**os.environ, "RAMMER_CACHE_DIR": folder}
        first = _run(command, environment)
        again = _run([*command, "--no-save"], environment)
    return output, {"compile": {**first, "cold": True, "again_s": again["s"]}}


def _run(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RammerError(f"compiling failed: {done.stderr.strip()[-400:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@click.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--policy", default="auto", show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--save/--no-save", default=True)
def main(model: Path, output: Path, policy: str, threads: int, save: bool) -> None:
    """Compile MODEL, save it as OUTPUT and print seconds and memory as JSON."""
    import rammer

    forget_peak()
    start = time.perf_counter()
    with rammer.compile(model, "cpu", policy=policy, device=threads) as program:
        seconds, report = time.perf_counter() - start, program.report()
        result = {"s": seconds, "phases_s": report.phases_s, "peak_mb": peak_mb(), "cold": False}
        result |= {
            "rtasks": report.num_rtasks,
            "estimated_ms": report.estimated_us / 1e3,
            "arena_mb": report.arena_bytes / 2**20,
        }
        result["packed_mb"] = report.weight_bytes / 2**20
        if save:
            program.save(output)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
