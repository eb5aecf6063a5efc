"""Implement ONNX's backend interface: `onnx_backend.prepare(model).run(inputs)`. It serves all of onnx.backend.test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, defs, helper
from onnx.backend.base import Backend, BackendRep

from rammer.errors import InputError, ModelError
from rammer.frontend.onnx import Source
from rammer.runtime import devices
from rammer.session import Session

TEST_OPTIONS = ("rtol", "atol")  # options that the backend tests pass


class RammerRep(BackendRep):
    """A prepared model: a session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return all outputs, for inputs in order or by name."""
        if kwargs:
            raise InputError(f"run has no option {next(iter(kwargs))!r}", hint="options are those of prepare")
        if not isinstance(inputs, Mapping):
            names = [port.name for port in self.session.get_inputs()]
            given = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
            if len(given) > len(names):
                raise InputError(f"{len(given)} inputs given, the model takes {len(names)}: {', '.join(names)}")
            inputs = dict(zip(names, given, strict=False))
        return tuple(self.session.run(None, inputs))


class RammerBackend(Backend):
    """Models and nodes on the vDevice that ONNX's device name means: "CPU", "CUDA:1"."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Check whether rammer supports every operator of the model."""
        try:
            Source(model).check()
        except ModelError:
            return False
        return True

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> RammerRep:
        """Open a session; options are those of `rammer.Session`. Programs are compiled when inputs are given."""
        target, _, number = device.partition(":")
        options = {name: value for name, value in kwargs.items() if name not in TEST_OPTIONS}
        return RammerRep(Session(model, target.lower(), device=number or None, **options))

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Run a model once."""
        rep = cls.prepare(model, device, **kwargs)
        with rep.session:
            return rep.run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one operator once. `opset_version` is the newest one unless given. Types of outputs are inferred."""
        names = [name for name in node.input if name]
        given = inputs if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=True))
        opset = kwargs.pop("opset_version", defs.onnx_opset_version())
        graph = helper.make_graph(
            [node],
            node.op_type,
            [_declaration(name, value) for name, value in given.items()],
            [ValueInfoProto(name=name) for name in node.output if name],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, opset)])
        return cls.run_model(model, given, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Check whether the vDevice can run programs here."""
        return device.partition(":")[0].lower() in _available()


@cache
def _available() -> frozenset[str]:
    """Return the vDevices that can run here.

    Cached: BackendTest asks in every case, and looking for drivers is slow.
    """
    return frozenset(info.name for info in devices() if info.available)


def _declaration(name: str, value: Any) -> ValueInfoProto:
    """Return the declaration of an input that takes the value."""
    if isinstance(value, list | tuple) and value and isinstance(value[0], np.ndarray):
        code = helper.np_dtype_to_tensor_dtype(value[0].dtype)
        return helper.make_tensor_sequence_value_info(name, code, None)
    array = np.asarray(value)
    code = TensorProto.STRING if array.dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, code, array.shape)


is_compatible = RammerBackend.is_compatible
prepare = RammerBackend.prepare
run_model = RammerBackend.run_model
run_node = RammerBackend.run_node
supports_device = RammerBackend.supports_device
