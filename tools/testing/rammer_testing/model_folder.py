"""Compare all models of a folder with ONNX Runtime: `python -m rammer.testing.onnx_suite --models FOLDER`.

Every `.onnx` file below the folder is a case; the first folder on its way is its family. Inputs are read from
`test_data_set_*` beside it, or made up from the declared shapes. The reference is ONNX Runtime; where it does not run a
model, ONNX's evaluator; else the outputs of the data set. A case is right, wrong (by the bounds of `errors.py`),
refused by name, or has no reference.

Deep networks with random weights amplify rounding, quantized ones every value that lies at the border between two
steps. Where a result exceeds the bound, ONNX Runtime without its optimizer says by how much. A quantized result is
right if it differs from the reference by at most as much, another one by at most twice as much, as Winograd's forms
round more. The reason names both distances.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from rammer.errors import RammerError
from rammer.session import Session
from rammer_testing.errors import Errors, Mismatch, Result, errors_of, is_right, one_line
from rammer_testing.runtime import run_runtime

OUTCOMES = ("right", "random", "wrong", "refused", "no reference", "error", "crash", "timeout")
FINE = ("right", "random", "refused", "no reference")
QUANTIZED = 200.0  # times the bound: values at the border between two steps may take either
SPREAD_QUANTIZED, SPREAD = 1.1, 2.0  # times the distance of ONNX Runtime without its optimizer
OPEN = {"batch": 2, "batch_size": 2, "N": 2}  # extents of open dimensions by name; all others have 16


def models_of(folder: Path) -> list[str]:
    """Return the models below a folder."""
    return sorted(str(path) for path in folder.rglob("*.onnx"))


def family(name: str, folder: Path) -> str:
    """Return the family of a model: the first folder on its way."""
    return next(iter(Path(name).relative_to(folder).parts[:-1]), "(none)")


def run_model(name: str, device: str = "CPU") -> Result:
    """Run a model on a device, and compare."""
    path = Path(name)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            model = onnx.load(path)
            sets = list(_data(path)) or [(_made_up(model), None)]
            wanted = [_reference(path, inputs, outputs) for inputs, outputs in sets]
            if any(values is None for values in wanted):
                return Result(name, "no reference", "neither ONNX Runtime nor ONNX's evaluator runs it")
            target, _, number = device.partition(":")
            with Session(name, target.lower(), device=number or None) as session:
                found = [session.run(None, inputs) for inputs, _ in sets]
    except RammerError as error:
        return Result(name, "refused", one_line(str(error)))
    except Exception as error:
        return Result(name, "error", one_line(f"{type(error).__name__}: {error}"))
    ops = {node.op_type for node in model.graph.node}
    if any("Random" in op or op in ("Bernoulli", "Multinomial") for op in ops):
        return Result(name, "random")
    quantized = any("Quantize" in op or "Integer" in op or op.startswith("Q") for op in ops)
    try:
        each = [errors_of(a, b) for a, b in zip(found, wanted, strict=True) if b is not None]
        errors = Errors(max(e.ulp for e in each), max(e.relative for e in each))
        factor = QUANTIZED if quantized else 1.0
        right = all(is_right(a, b, factor) for a, b in zip(found, wanted, strict=True) if b is not None)
    except Mismatch as error:
        return Result(name, "wrong", one_line(str(error)))
    what = "" if right else f"relative error {errors.relative:.2g}, {errors.ulp:g} ULP"
    if not right:
        apart = _spread(path, sets)
        right = errors.relative <= (SPREAD_QUANTIZED if quantized else SPREAD) * apart
        what += f"; ONNX Runtime with and without its optimizer differ by {apart:.2g}"
    return Result(name, "right" if right else "wrong", what, errors)


def _spread(path: Path, sets: Sequence[tuple[Mapping[str, Any], Any]]) -> float:
    """Return the largest relative distance of ONNX Runtime's results with and without its optimizer; 0 if it fails."""
    try:
        pairs = [(run_runtime(path, inputs), run_runtime(path, inputs, plain=True)) for inputs, _ in sets]
        return max(errors_of(plain, best).relative for best, plain in pairs)
    except Exception:  # it raises anything
        return 0.0


def _data(path: Path) -> Iterator[tuple[dict[str, Any], list[Any] | None]]:
    """Yield inputs by name, and outputs, of each data set beside a model."""
    model = onnx.load(path, load_external_data=False)
    known = {t.name for t in model.graph.initializer}
    ports = [v.name for v in model.graph.input if v.name not in known]
    for folder in sorted(path.parent.glob("test_data_set_*")):
        inputs = [folder / f"input_{n}.pb" for n in range(len(ports))]
        outputs = [folder / f"output_{n}.pb" for n in range(len(model.graph.output))]
        if all(file.exists() for file in inputs):
            read = [[_array(f) for f in files] for files in (inputs, outputs) if all(f.exists() for f in files)]
            yield dict(zip(ports, read[0], strict=True)), read[1] if len(read) > 1 else None


def _array(file: Path) -> Any:
    return numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes()))


def _made_up(model: onnx.ModelProto) -> dict[str, Any]:
    """Return values for all inputs: normal numbers, small integers. Open dimensions of one name have one extent."""
    random, known = np.random.default_rng(0), {t.name for t in model.graph.initializer}
    values: dict[str, Any] = {}
    for port in model.graph.input:
        if port.name in known:
            continue
        kind = port.type.tensor_type
        shape = [d.dim_value if d.dim_value > 0 else OPEN.get(d.dim_param, 16) for d in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if kind.elem_type == onnx.TensorProto.STRING:
            values[port.name] = random.choice(np.array(["a", "b", "c"], object), shape)
        elif np.dtype(dtype).kind in "iub":
            values[port.name] = random.integers(0, 2, shape).astype(dtype)
        else:
            values[port.name] = random.normal(size=shape).astype(dtype)
    return values


def _reference(path: Path, inputs: Mapping[str, Any], outputs: list[Any] | None) -> list[Any] | None:
    """Return what the model should give; None if nothing says it."""
    for run in (run_runtime, _evaluator):
        try:
            return run(path, inputs)
        except Exception:  # they raise anything
            continue
    return outputs


def _evaluator(path: Path, inputs: Mapping[str, Any]) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(str(path)).run(None, dict(inputs)))


def counts(results: Sequence[Result], folder: Path) -> dict[str, Counter[str]]:
    """Count outcomes by family."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        table[family(result.name, folder)][result.outcome] += 1
    return dict(sorted(table.items()))
