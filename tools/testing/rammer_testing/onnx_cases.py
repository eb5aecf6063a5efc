"""Load the cases of onnx.backend.test, as BackendTest makes them for `rammer_testing.onnx_backend` on the CPU.

Importing this module reads all cases, which takes longer than running most of them. So workers are forked from a
process that has imported it.
"""

from __future__ import annotations

import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.test import BackendTest
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from rammer.errors import RammerError
from rammer.frontend.onnx.tensors import ELEMENT_TYPES
from rammer_testing.errors import Errors, Mismatch, Result, errors_of, one_line
from rammer_testing.onnx_backend import RammerBackend, RammerRep
from rammer_testing.runtime import open_runtime

KIND_NAMES = ("node", "pytorch-converted", "pytorch-operator", "simple", "real")
SUFFIX = "_cpu"  # that BackendTest gives names


@dataclass(frozen=True, slots=True)
class Difference:
    """A known deviation: rammer exceeds the suite's tolerance for a case, but not this one."""

    reason: str
    rtol: float | None = None  # None: the suite's own
    atol: float | None = None


_HALF = (
    "float16 sums in float32: 4.0e-4 from float64, the suite's values are 4.9e-4 from it; two units in the last place"
)
_ZEROS = "the result is 0; the suite's values are 1.9e-7, rammer's 3e-15, and the suite allows 1e-7"
_DRAWN = Difference("random numbers from another stream than NumPy's", atol=float("inf"))
_RANDOM = (
    *(f"bernoulli{kind}{form}" for kind in ("", "_double", "_seed") for form in ("", "_expanded")),
    *(f"training_dropout{kind}" for kind in ("", "_default", "_default_mask", "_mask")),
)
DIFFERENCES = {
    **{f"test_{name}": _DRAWN for name in _RANDOM},
    "test_attention_4d_causal_fp16": Difference(_HALF, rtol=2**-9),
    "test_attention_4d_causal_fp16_expanded": Difference(_HALF, rtol=2**-9),
    "test_dft_inverse": Difference(_ZEROS, atol=2.5e-7),
    "test_dft_inverse_opset19": Difference(_ZEROS, atol=2.5e-7),
}


class _Differs(Exception):
    """Raised for a case of DIFFERENCES that deviates as much as is known."""


class _Recorded(RammerRep):
    """A prepared model that remembers its inputs."""

    inputs: Any = ()

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        self.inputs = inputs
        return super().run(inputs, **kwargs)


class Directed(RammerBackend):
    """`rammer_testing.onnx_backend` on any vDevice, while BackendTest asks for the CPU."""

    device = "CPU"
    last: tuple[onnx.ModelProto, _Recorded] | None = None  # what was prepared last

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> RammerRep:
        rep = _Recorded(super().prepare(model, cls.device, **kwargs).session)
        cls.last = model, rep
        return rep

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return True: a device that is missing is refused by name later."""
        return True


class Suite(BackendTest):
    """BackendTest with its own tolerances, and one correction: it compares tensors of a list as lists of numbers.

    So it raises TypeError for any elements of rank 0 (test_loop16_seq_none, even with ONNX's evaluator).
    """

    known: Difference | None = None  # of the case that runs
    errors: tuple[Errors | None, Errors | None] = (None, None)  # rammer's and ONNX Runtime's in it

    @classmethod
    def assert_similar_outputs(
        cls, ref_outputs: Sequence[Any], outputs: Sequence[Any], rtol: float, atol: float, model_dir: str | None = None
    ) -> None:
        """Raise AssertionError for outputs that differ in number, kind, shape, element type or value."""
        cls.errors = _measured(outputs, ref_outputs), _measured(_runtimes(), ref_outputs)
        flat = []
        for values in (ref_outputs, outputs):
            lists = [v if isinstance(v, list | tuple) else [v] for v in values]
            flat.append(([isinstance(v, list | tuple) and len(v) for v in values], [t for part in lists for t in part]))
        (wanted_form, wanted), (form, found) = flat
        assert form == wanted_form, f"lengths of lists are {form} instead of {wanted_form}"
        for n, (want, value) in enumerate(zip(wanted, found, strict=True)):
            assert (want is None) == (value is None), f"output {n} is {value} instead of {want}"
        tensors = [(w, v) for w, v in zip(wanted, found, strict=True) if w is not None]
        flat_outputs = [w for w, _ in tensors], [v for _, v in tensors]
        try:
            super().assert_similar_outputs(*flat_outputs, rtol, atol, model_dir)
        except AssertionError as error:
            if cls.known is None:
                raise
            rtol, atol = cls.known.rtol or rtol, cls.known.atol or atol
            super().assert_similar_outputs(*flat_outputs, rtol, atol, model_dir)
            raise _Differs from error


def _measured(found: Sequence[Any] | None, wanted: Sequence[Any]) -> Errors | None:
    """Return the largest errors of results; None if they differ in form, or in values that have to be equal."""
    try:
        return None if found is None else errors_of(found, list(wanted))
    except Mismatch:
        return None


def _runtimes() -> list[Any] | None:
    """Return what ONNX Runtime computes for the model that ran last; None if it does not run it."""
    if Directed.last is None:
        return None
    model, rep = Directed.last
    try:
        session = open_runtime(model)
        names = [port.name for port in session.get_inputs()]
        return list(session.run(None, dict(zip(names, rep.inputs, strict=False))))
    except Exception:  # it raises anything
        return None


def _read() -> tuple[dict[str, Callable[[], Any]], dict[str, tuple[str, TestCase]]]:
    """Return every case's test, and its kind and data, by name."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the suite's own arithmetic
        data = {case.name: (kind, case) for kind in KIND_NAMES for case in load_model_tests(kind=kind)}
        classes = Suite(Directed, __name__).test_cases.values()
    tests = {
        name.removesuffix(SUFFIX): getattr(kind(name), name)
        for kind in classes
        for name in unittest.defaultTestLoader.getTestCaseNames(kind)
        if name.endswith(SUFFIX)
    }
    return tests, data


_TESTS, _DATA = _read()
NAMES = tuple(sorted(_DATA))
KINDS = {name: kind for name, (kind, _) in _DATA.items()}


def operators(name: str) -> tuple[str, ...]:
    """Return a case's operators, those of subgraphs included; none for models of whole networks."""
    model = _model(name)
    return tuple(sorted(set(_operators(model.graph)))) if model else ()


def element_type(name: str) -> str:
    """Return the element type of a case's first input, or of its first output if it has no input."""
    model = _model(name)
    for value in (*model.graph.input, *model.graph.output) if model else ():
        kind = value.type
        if kind.HasField("optional_type"):
            kind = kind.optional_type.elem_type
        kind = kind.sequence_type.elem_type if kind.HasField("sequence_type") else kind
        code = kind.tensor_type.elem_type
        return ELEMENT_TYPES[code].value if code in ELEMENT_TYPES else onnx.TensorProto.DataType.Name(code).lower()
    return ""


def _model(name: str) -> onnx.ModelProto | None:
    """Return a case's model; None for whole networks."""
    kind, case = _DATA[name]
    return None if kind == "real" else case.model or onnx.load(Path(case.model_dir or "") / "model.onnx")


def _operators(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _operators(inner)


def run_case(name: str, device: str = "CPU") -> Result:
    """Run a case in this process, on a device of `rammer_testing.onnx_backend`: "CPU", "cuda:emulator:2"."""
    Directed.device = device
    Suite.known, Suite.errors, Directed.last = DIFFERENCES.get(name), (None, None), None
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            _TESTS[name]()
    except unittest.SkipTest:
        return Result(name, "refused", "it has operators that rammer has not")
    except RammerError as error:
        return Result(name, "refused", one_line(error.what))
    except _Differs:
        errors = Suite.errors if DIFFERENCES[name] != _DRAWN else ()  # a draw has no error
        return Result(name, "differs", DIFFERENCES[name].reason, *errors)
    except AssertionError as error:
        return Result(name, "wrong", one_line(str(error)), *Suite.errors)
    except Exception as error:
        return Result(name, "error", one_line(f"{type(error).__name__}: {error}"))
    finally:
        Directed.last = None  # its session keeps programs open
    return Result(name, "passes", "", *Suite.errors)
