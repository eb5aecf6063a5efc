"""What `benchmarks.compare.before` starts in a process of its own, with another checkout's rammer, and nothing else.

python -P version.py compile FOLDER MODEL.onnx   to saved.rammer, and compiled.json: seconds, rKernels
python -P version.py run FOLDER PIPE             saved.rammer with inputs.npz to outputs.npz, then times runs when asked
"""

from __future__ import annotations

import json
import resource
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np


def compile_model(folder: Path, model: str) -> None:
    """Compile and save; note what it took, to import rammer included, and which rKernels were chosen."""
    start = time.perf_counter()
    import rammer

    with rammer.compile(model, "cpu") as program:
        seconds = time.perf_counter() - start
        program.save(folder / "saved.rammer")
        names = [kernel.name for kernel in program.plan.kernels]
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(one.ru_utime + one.ru_stime for one in used)
    (folder / "compiled.json").write_text(json.dumps({"s": seconds, "cpu_s": cpu_s, "kernels": names}))


def run(folder: Path, pipe: int) -> None:
    """Answer each number of seconds with the milliseconds of the runs in them, until None."""
    import rammer

    asked = Connection(pipe)
    with np.load(folder / "inputs.npz") as file:
        inputs = dict(file)
    with rammer.load_program(folder / "saved.rammer") as program:
        np.savez(folder / "outputs.npz", **program.run(inputs))
        asked.send([])
        while (seconds := asked.recv()) is not None:
            program.run(inputs)
            samples: list[float] = []
            end = time.perf_counter() + seconds
            while not samples or time.perf_counter() < end:
                start = time.perf_counter()
                program.run(inputs)
                samples.append((time.perf_counter() - start) * 1e3)
            asked.send(samples)


if __name__ == "__main__":
    what, where, other = sys.argv[1:]
    if what == "compile":
        compile_model(Path(where), other)
    else:
        run(Path(where), int(other))
