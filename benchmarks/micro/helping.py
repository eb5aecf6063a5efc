"""Measure work stealing between vEUs: one program with and without it, in turns.

python -m benchmarks.micro.helping [--seconds 8] [--slowed 1] MODEL…
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

import rammer
from benchmarks.compare.policies import in_turn
from benchmarks.models import catalog
from rammer import config

BUSY_US = 100  # a process that computes as long as it sleeps
SLOWING = f"""
import os, sys, time
os.sched_setaffinity(0, {{int(sys.argv[1])}})
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(os.sched_get_priority_max(os.SCHED_FIFO)))
    print("highest", flush=True)
except PermissionError:
    print("usual", flush=True)  # it shares the core as any other process does
while True:
    start = time.perf_counter()
    while time.perf_counter() - start < {BUSY_US}e-6:
        pass
    time.sleep({BUSY_US}e-6)
"""


@contextmanager
def slowed(cpu: int | None) -> Iterator[str]:
    """A CPU half of whose time another process takes, and what to say of it."""
    if cpu is None:
        yield ""
        return
    process = subprocess.Popen([sys.executable, "-c", SLOWING, str(cpu)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if not (priority := process.stdout.readline().strip()):
            raise click.ClickException("the process that should slow the CPU down did not begin")
        yield f", CPU {cpu} slowed by a process of {priority} priority"
    finally:
        process.kill()
        process.wait()


@click.command()
@click.argument("models", nargs=-1, required=True)
@click.option("--seconds", default=8.0, show_default=True, help="Per model.")
@click.option("--slowed", "cpu", type=int, help="A CPU that another process slows down meanwhile.")
def main(models: tuple[str, ...], seconds: float, cpu: int | None) -> None:
    """Run programs of MODELS without help and with it (NAME:4 for batch 4)."""
    if cpu is not None and cpu not in os.sched_getaffinity(0):
        raise click.BadParameter(f"CPU {cpu} is none of this process's {sorted(os.sched_getaffinity(0))}")
    for model in models:
        built = catalog.named(model).built
        programs = []
        for flag in ("0", "1"):
            with config.override(RAMMER_HAND_OVER=flag):
                programs.append(rammer.compile(str(built.path), "cpu"))
        with slowed(cpu) as how:
            click.echo(f"{model}{how}: {in_turn(programs, built.inputs, ('without', 'with'), seconds)}")
        for program in programs:
            program.close()


if __name__ == "__main__":
    main()
