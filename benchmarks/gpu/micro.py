"""Measure synchronisation and launches on an NVIDIA GPU: each kind of barrier, a launch, a node of a graph.

Every block signals its own round and waits for its left neighbour's, a thousand times; a round is one hop. Each poll
loop ends after a second, so a fault costs one second and does not block the GPU.

python -m benchmarks.gpu.micro --json micro.json
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.gpu import micro_driver as gpu_micro_driver
from benchmarks.gpu.micro_results import Micro
from benchmarks.gpu.micro_texts import (
    ALONE,
    CHASED,
    CLUSTER,
    CLUSTERED,
    EMPTY,
    KINDS,
    LINE,
    ROUNDS,
    THREADS,
    barrier_text,
    chase_text,
)
from rammer import files
from rammer.errors import RammerError
from rammer.vdevice.cuda.build import compile_cubin
from rammer.vdevice.cuda.driver import device_errors, find_gpu, load_cupy

LAUNCHES = 200
REPEATS = 7
BYTES = 1 << 30  # of a copy that no cache holds


def measure(number: int, arch: str, num_sms: int) -> list[Micro]:
    """All microbenchmarks on a GPU; one that fails does not stop the others. Raises DeviceError without a GPU."""
    return [micro for some in _measured(number, arch, num_sms) for micro in some]


def _measured(number: int, arch: str, num_sms: int) -> Iterator[list[Micro]]:
    """Step by step, so that what was found is kept if a later one ends the process."""
    cupy = load_cupy()
    steps: dict[str, Callable[[Any, str, int], list[Micro]]] = {
        **{f"barrier: {kind}": _barrier(kind) for kind in ALONE},
        "L2": _chase,
        "launch": _launches,
        "copy": _copies,
        "slots": gpu_micro_driver.slots,
        "clusters": gpu_micro_driver.clusters,
        "programmatic launches": gpu_micro_driver.following,
        **{f"barrier: {kind}": _barrier(kind) for kind in CLUSTERED},  # last: a fault would end this process's CUDA
    }
    for what, step in steps.items():
        try:
            with device_errors(cupy, f"measure {what}"), cupy.cuda.Device(number):
                yield step(cupy, arch, num_sms)
        except RammerError as error:
            yield [Micro(what, failed=error.what)]
        except (RuntimeError, ImportError, AttributeError, TypeError, ValueError) as error:  # of bindings
            yield [Micro(what, failed=f"{type(error).__name__}: {error}"[:300])]


def hop_costs(found: list[Micro]) -> dict[str, float]:
    """For `benchmarks.on_paper.hops --costs`: a fence is what a counter takes more than data that says it is there."""
    us = {m.what.removeprefix("barrier: ").partition(",")[0]: m.median for m in found}
    counter, flag = us.get("counter"), us.get("data as flag")
    return {} if counter is None or flag is None else {"fence_us": max(counter - flag, 0.0), "poll_us": flag}


def _function(cupy: Any, text: str, arch: str) -> Any:
    module = cupy.cuda.Module()
    module.load(compile_cubin(text, arch).data)
    return module.get_function("micro")


def _elapsed_ms(cupy: Any, stream: Any, enqueue: Callable[[], None]) -> float:
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record(stream)
    enqueue()
    end.record(stream)
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(begin, end))


def _barrier(kind: str) -> Callable[[Any, str, int], list[Micro]]:
    def step(cupy: Any, arch: str, num_sms: int) -> list[Micro]:
        blocks = num_sms // CLUSTER * CLUSTER if kind in CLUSTERED else num_sms
        function = _function(cupy, barrier_text(kind), arch)
        stream = cupy.cuda.Stream(non_blocking=True)
        line, late = cupy.zeros(LINE * (1 + blocks), np.uint32), cupy.zeros(1, np.uint32)
        times = []
        for _ in range(1 + REPEATS):
            line.set(np.zeros(line.shape, np.uint32))
            cupy.cuda.runtime.deviceSynchronize()

            def enqueue() -> None:
                together = kind not in CLUSTERED
                function((blocks,), (THREADS,), (line, late), stream=stream, enable_cooperative_groups=together)

            times.append(1e3 * _elapsed_ms(cupy, stream, enqueue) / ROUNDS)
            if int(late.get()[0]):
                raise RammerError("a spin gave up after a second")
        return [Micro(f"barrier: {kind}, {blocks} blocks", statistics.median(times[1:]), min(times[1:]))]

    return step


def _chase(cupy: Any, arch: str, num_sms: int) -> list[Micro]:
    """Clocks of a load from L2 by one multiprocessor: half of the lines lie in the partition that is not its own."""
    function = _function(cupy, chase_text(), arch)
    lines, clocks = cupy.zeros(LINE * CHASED, np.uint32), cupy.zeros(CHASED, np.uint32)
    function((1,), (1,), (lines, clocks))
    cupy.cuda.runtime.deviceSynchronize()
    quantiles = np.quantile(clocks.get(), (0.05, 0.25, 0.5, 0.75, 0.95))
    names = ("5 %", "25 %", "median", "75 %", "95 %")
    return [
        Micro(f"load from L2, {name}", float(q), float(q), "clocks") for name, q in zip(names, quantiles, strict=True)
    ]


def _launches(cupy: Any, arch: str, num_sms: int) -> list[Micro]:
    function = _function(cupy, EMPTY, arch)
    stream = cupy.cuda.Stream(non_blocking=True)

    def launch(together: bool) -> None:
        function((num_sms,), (THREADS,), (), stream=stream, enable_cooperative_groups=together)

    def back_to_back(together: bool) -> None:
        for _ in range(LAUNCHES):
            launch(together)

    def single_us() -> float:
        start = time.perf_counter()
        launch(True)
        stream.synchronize()
        return 1e6 * (time.perf_counter() - start)

    found = []
    for what, together in (("launch, back to back", False), ("cooperative launch, back to back", True)):
        times = [
            1e3 * _elapsed_ms(cupy, stream, partial(back_to_back, together)) / LAUNCHES for _ in range(1 + REPEATS)
        ]
        found.append(Micro(what, statistics.median(times[1:]), min(times[1:])))
    for blocks in (num_sms, 2 * num_sms):
        once = partial(function, (blocks,), (THREADS,), (), stream=stream, enable_cooperative_groups=True)
        times = [1e3 * _elapsed_ms(cupy, stream, once) for _ in range(1 + REPEATS)]
        what = f"a cooperative launch of {blocks} blocks between two events"
        found.append(Micro(what, statistics.median(times[1:]), min(times[1:])))
    alone = [single_us() for _ in range(50)][10:]
    found.append(
        Micro("cooperative launch, until the host knows that it is done", statistics.median(alone), min(alone))
    )
    for what, together in (("node of a graph", False), ("cooperative node of a graph", True)):
        with stream:
            stream.begin_capture()
            back_to_back(together)
            graph = stream.end_capture()
        replay = partial(graph.launch, stream)
        times = [1e3 * _elapsed_ms(cupy, stream, replay) / LAUNCHES for _ in range(1 + REPEATS)]
        found.append(Micro(what, statistics.median(times[1:]), min(times[1:])))
    return found


def _copies(cupy: Any, arch: str, num_sms: int) -> list[Micro]:
    """Reading and writing, counted both: the rate that bytes cannot beat."""
    stream = cupy.cuda.Stream(non_blocking=True)
    source, target = cupy.zeros(BYTES, np.uint8), cupy.zeros(BYTES, np.uint8)
    cupy.cuda.runtime.deviceSynchronize()
    times = [
        _elapsed_ms(cupy, stream, lambda: target.data.copy_from_device_async(source.data, BYTES, stream))
        for _ in range(1 + REPEATS)
    ]
    rates = [2 * BYTES / (ms * 1e6) for ms in times[1:]]
    return [Micro("copy in device memory, bytes read and written", statistics.median(rates), max(rates), "GB/s")]


def compiled(arch: str) -> list[Micro]:
    """Only whether the kernels compile: what can be checked without a GPU."""
    found = []
    for kind in KINDS:
        try:
            registers = max(k.registers for k in compile_cubin(barrier_text(kind), arch).kernels.values())
            found.append(Micro(f"barrier: {kind}", failed=f"compiled for {arch} ({registers} registers), not run"))
        except RammerError as error:
            found.append(Micro(f"barrier: {kind}", failed=error.what))
    return found


@click.command()
@click.option("--device", "number", default=0, show_default=True, help="The GPU's number.")
@click.option("--dry-run", "dry", is_flag=True, help="Only compile.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Where to write what was found.")
def main(number: int, dry: bool, output: Path | None) -> None:
    """Measure and print; costs of hand-overs are for `benchmarks.on_paper.hops --costs`."""
    gpu = None if dry else find_gpu(number)
    steps = _measured(number, gpu.arch, gpu.num_multiprocessors) if gpu else iter([compiled("sm_90")])
    found: list[Micro] = []
    for some in steps:
        found += some
        for m in some:
            click.echo(f"{m.what:60} {m.failed or f'{m.median:10.3f} {m.least:10.3f} {m.unit}'}")
        if output:
            output.parent.mkdir(parents=True, exist_ok=True)
            content = {"gpu": asdict(gpu) if gpu else None, "micro": [asdict(m) for m in found]}
            files.write(output, json.dumps({**content, "hop_costs": hop_costs(found)}, indent=1))


if __name__ == "__main__":
    main()
