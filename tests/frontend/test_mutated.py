"""The malformed corpus grows with each operator by itself: models of ONNX's backend suite with one number changed.

Attributes out of range, negative sizes, huge counts, types that do not belong: each is imported or refused with a
ModelError, never anything else, in bounded time and memory.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from math import inf, nan

import numpy as np
import pytest
from backend_suite import cases, import_case
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

from rammer.errors import ModelError

# a mutant has other shapes than the case declares
pytestmark = pytest.mark.filterwarnings("ignore:the model says what does not hold:rammer.errors.ModelWarning")

MEMORY_BYTES = 6 << 30
SECONDS = 20.0  # of one import on a busy machine; a count that is walked takes hours
INTEGERS = (-1, 0, 7, 1 << 31, 1 << 40, -(1 << 62))
FLOATS = (nan, inf, -1.0)
INDICES = (-(1 << 62), -1, 0, 1 << 40)  # in place of a number of an input that decides shapes


def mutants(made: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    """Copies of a model with one attribute of a node changed, by what was changed."""
    for n, node in enumerate(made.graph.node):
        for k, attribute in enumerate(node.attribute):
            for value in _instead(attribute):
                changed = ModelProto()
                changed.CopyFrom(made)
                changed.graph.node[n].attribute[k].CopyFrom(helper.make_attribute(attribute.name, value))
                yield f"{attribute.name}={str(value)[:40]}", changed


def _instead(attribute: AttributeProto) -> Iterator[object]:
    match attribute.type:
        case AttributeProto.INT:
            yield from INTEGERS
        case AttributeProto.INTS:
            for value in INTEGERS:
                yield [value, *attribute.ints[1:]]
                yield [*attribute.ints, value]
        case AttributeProto.FLOAT:
            yield from FLOATS
        case AttributeProto.STRING:
            yield "nonsense"
        case AttributeProto.TENSOR:
            yield numpy_helper.from_array(np.zeros((0, 3), np.float64))
            yield TensorProto(data_type=TensorProto.INT64, dims=[1 << 40], int64_data=[1])


def samples(every: bool) -> Iterator[tuple[str, ModelProto, dict[str, np.ndarray]]]:
    """A case for each operator and set of attributes, or every case, with the values of its inputs."""
    known = set()
    for case in cases():
        key = tuple((n.domain, n.op_type, *sorted(a.name for a in n.attribute)) for n in case.model.graph.node)
        if case.kind != "node" or "_expanded" in case.name or (key in known and not every):
            continue
        known.add(key)
        if all(isinstance(v, TensorProto | np.ndarray | np.generic) for v in (case.data_sets or [([], [])])[0][0]):
            named = [v.name for v in case.model.graph.input if v.name]
            given = case.data_sets[0][0] if case.data_sets else []
            arrays = (numpy_helper.to_array(v) if isinstance(v, TensorProto) else np.asarray(v) for v in given)
            yield case.name, case.model, dict(zip(named, arrays, strict=False))


def attempt(what: str, made: ModelProto, inputs: dict[str, np.ndarray]) -> str:
    """Why an import is a fault; empty if it is none."""
    start = time.process_time()
    try:
        with np.errstate(all="ignore"):
            import_case(made, inputs)
    except ModelError as error:
        if not (error.op or error.node) and "input" not in error.what and "output" not in error.what:
            return f"{what}: names no place: {error.what}"
    except Exception as error:
        return f"{what}: {type(error).__name__}: {error}"[:300]
    seconds = time.process_time() - start
    return f"{what}: took {seconds:.0f} s" if seconds > SECONDS else ""


def found(every: bool) -> list[str]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, hard))
    try:
        faults = []
        for name, made, inputs in samples(every):
            faults += [attempt(f"{name}, {what}", changed, inputs) for what, changed in mutants(made)]
            for key, value in inputs.items():
                if value.dtype in (np.int64, np.int32) and value.size:
                    for number in INDICES:
                        changed = value.copy()
                        changed.flat[0] = np.asarray(number).astype(value.dtype)
                        faults.append(attempt(f"{name}, input {key}[0]={number}", made, {**inputs, key: changed}))
        return [fault for fault in faults if fault]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_changed_attributes_are_imported_or_refused() -> None:
    assert found(every=False) == []


@pytest.mark.slow
def test_changed_attributes_of_all_cases_are_imported_or_refused() -> None:
    assert found(every=True) == []
