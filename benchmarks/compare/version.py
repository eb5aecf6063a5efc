"""Run another checkout's rammer in a process of its own, for `before` and `replay`. Imports nothing else of ours.

python -P version.py compile FOLDER MODEL.onnx   to saved.rammer, and compiled.json: seconds, rKernels
python -P version.py run FOLDER PIPE             saved.rammer with inputs.npz to outputs.npz, then times runs when asked
python -P version.py schedules FOLDER ASKED.json candidate schedules of models, without compiling, to schedules.jsonl.gz
"""

from __future__ import annotations

import gzip
import json
import resource
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np


def compile_model(folder: Path, model: str) -> None:
    """Compile and save a model. Write the seconds, including the import of rammer, and the chosen rKernels."""
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
    """Answer each number of seconds with the milliseconds of the runs within them; end at None."""
    import rammer

    asked = Connection(pipe)
    with np.load(folder / "inputs.npz") as file:
        inputs = dict(file)
    load = rammer.load if hasattr(rammer, "from_onnx") else rammer.load_program  # before 0.5
    with load(folder / "saved.rammer") as program:
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


def schedules(folder: Path, asked: Path) -> None:
    """Write a line for each operation of each model and spec: the candidates' names, schedules and packing, in order.

    Operations that an earlier model has on the same spec are left out. The hook `rammer_rkernels` calls the
    generators, so that versions with different generators can be compared.
    """
    import rammer
    from rammer.errors import RammerError
    from rammer.passes import optimize
    from rammer.plugins import PluginRegistry

    try:
        from rammer.ir.kernel import Tuning
    except ImportError:  # an older version: the hook took `finer` itself
        more: dict[str, Any] = {"finer": (4,)}
    else:
        more = {"tuning": Tuning(task_multiples=(4,))}
    registry, wanted = PluginRegistry(), json.loads(asked.read_text())
    from_onnx = getattr(rammer, "from_onnx", None) or rammer.load  # before 0.5
    graphs = {name: from_onnx(path) for name, path in wanted["models"].items()}
    with gzip.open(folder / "schedules.jsonl.gz", "wt") as file:
        for title, (target, arch, device, precision) in wanted["specs"].items():
            with_defaults = registry.open(target, arch=arch, device=device)
            spec, known = replace(with_defaults.spec, precision=precision), set()
            with_defaults.close()
            for model, graph in graphs.items():
                for place, operator in enumerate(optimize(graph, spec).operators):
                    operation = operator.operation
                    if operation in known:
                        continue
                    known.add(operation)
                    try:
                        found = [_value(k) for k in registry.rkernels(operation, spec, **more)]
                    except RammerError as error:
                        found = [[type(error).__name__, str(error)]]
                    row = {"spec": title, "model": model, "operator": f"{place} {operator.name}", "kernels": found}
                    print(json.dumps(row), file=file)


def _value(kernel: Any) -> list[str]:
    """Return the texts that identify a candidate."""
    packing = [f"{tensor}: {layout}" for tensor, layout in kernel.packing]
    finer, places = _either(kernel, "for_splitting", "finer"), _either(kernel, "pipeline_depth", "places")
    return [kernel.name, kernel.schedule, "; ".join(packing), f"finer {finer}, places {places}"]


def _either(kernel: Any, name: str, old: str) -> Any:
    """Return a field by its name, or by that of older versions."""
    return getattr(kernel, name) if hasattr(kernel, name) else getattr(kernel, old)


if __name__ == "__main__":
    what, where, other = sys.argv[1:]
    if what == "compile":
        compile_model(Path(where), other)
    elif what == "schedules":
        schedules(Path(where), Path(other))
    else:
        run(Path(where), int(other))
