"""Implement the interface of ONNX Runtime's InferenceSession, as far as it has a meaning here.

The rest is refused, with an alternative. An option that would change a result, a file or the device is never ignored.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rammer import log
from rammer.errors import InputError, did_you_mean
from rammer.ir.tensor import Array
from rammer.plugins import PluginRegistry
from rammer.runtime.call import Runnable

PROVIDERS = {"CPUExecutionProvider": "cpu", "CUDAExecutionProvider": "cuda", "ROCMExecutionProvider": "rocm"}
Provider: TypeAlias = str | tuple[str, Mapping[str, Any]]

logger = logging.getLogger(__name__)

_INSTEAD = {
    "disable_fallback": "rammer never falls back to another device",
    "enable_fallback": "rammer never falls back to another device: Session(…, providers=[…]) names several",
    "end_profiling": "Program.profile, or `rammer bench`, say where time goes",
    "get_profiling_start_time_ns": "Program.profile, or `rammer bench`, say where time goes",
    "get_session_options": "options are arguments of Session",
    "set_providers": "open another one: Session(…, providers=[…])",
    "run_with_ortvaluevector": "use run_with_ort_values",
}


@dataclass(frozen=True)
class ModelMetadata:
    """A model's metadata, with the field names of ONNX Runtime."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict, hash=False)


class OrtValue:
    """An array with the interface of ONNX Runtime's OrtValue. Sessions accept ONNX Runtime's own, too."""

    def __init__(self, array: Any) -> None:
        self._array = array

    @classmethod
    def ortvalue_from_numpy(cls, numpy_obj: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """Wrap the array without a copy. Raises InputError for memory that is not the host's."""
        _require_host(device_type)
        return cls(np.asarray(numpy_obj))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Return a new array of zeros. Raises InputError for memory that is not the host's."""
        _require_host(device_type)
        return cls(np.zeros(tuple(shape), element_type))

    def numpy(self) -> Any:
        """Return the array."""
        return self._array

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def data_ptr(self) -> int:
        return int(self._array.ctypes.data)

    def device_name(self) -> str:
        return "cpu"

    def is_tensor(self) -> bool:
        return not isinstance(self._array, list)

    def update_inplace(self, np_arr: Array) -> None:
        """Copy values of the same shape and type into the array. Raises InputError for others."""
        if np_arr.shape != self._array.shape or np_arr.dtype != self._array.dtype:
            raise InputError(f"{np_arr.dtype}{list(np_arr.shape)} is no {self._array.dtype}{self.shape()}")
        np.copyto(self._array, np_arr)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._array, dtype, copy=copy)

    def __repr__(self) -> str:
        return f"<OrtValue: {self._array!r}>"


class IOBinding:
    """Inputs of a run and memory for its outputs. A run fills arrays that are bound as outputs."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Array | None] = {}
        self.found: list[Any] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an input."""
        self.inputs[name] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Bind an input."""
        self.inputs[name] = ortvalue

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind an input by the address of its memory, which must stay valid until the run ends."""
        _require_host(device_type)
        self.inputs[name] = _at(buffer_ptr, element_type, shape)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Request an output, in memory of its own or at an address."""
        _require_host(device_type)
        self.outputs[name] = None if buffer_ptr is None else _at(buffer_ptr, element_type, shape or ())

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Request an output in the memory of a value."""
        self.outputs[name] = ortvalue.numpy()

    def clear_binding_inputs(self) -> None:
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        self.outputs.clear()

    def synchronize_inputs(self) -> None:
        """Do nothing: inputs are complete before a run begins."""

    def synchronize_outputs(self) -> None:
        """Do nothing: outputs are complete when a run ends."""

    def run(self, run_options: Any = None) -> None:
        """Run with the bound inputs and outputs, as `run_with_iobinding` does."""
        names = list(self.outputs)
        self.found = self._session.run(names, self.inputs, run_options)
        for n, name in enumerate(names):
            if (place := self.outputs[name]) is not None:
                if (place.shape, place.dtype) != (self.found[n].shape, self.found[n].dtype):
                    raise InputError(
                        f"output {name!r} is {self.found[n].dtype}{list(self.found[n].shape)}, "
                        f"and bound to {place.dtype}{list(place.shape)}"
                    )
                np.copyto(place, self.found[n])
                self.found[n] = place

    def get_outputs(self) -> list[OrtValue]:
        """Return the outputs of the last run, in the order in which they were bound."""
        return [OrtValue(value) for value in self.found]

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return the outputs of the last run as arrays."""
        return list(self.found)


class InferenceSession(Runnable):
    """The part of ONNX Runtime's session interface that builds on `run`."""

    def get_providers(self) -> list[str]:
        """Return ONNX Runtime's name of the vDevice; the vDevice's own name if it has none."""
        return [next((name for name, target in PROVIDERS.items() if target == self.target), self.target)]

    @property
    @abstractmethod
    def target(self) -> str:
        """Name of the vDevice."""

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return an empty dictionary per provider: options are arguments of Session."""
        return {name: {} for name in self.get_providers()}

    def get_overridable_initializers(self) -> list[Any]:
        """Return an empty list: initializers are constants of programs."""
        return []

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any = None,
        run_options: Any = None,
    ) -> None:
        """Run in another thread, which calls `callback(outputs, user_data, error)`.

        On success the error is an empty text.
        """

        def work() -> None:
            found: list[Any] = []
            error = ""
            try:
                found = self.run(output_names, input_feed, run_options)
            except Exception as failure:
                error = f"{type(failure).__name__}: {failure}"
            callback(found, user_data, error)

        threading.Thread(target=work, name="rammer run_async", daemon=True).start()

    def io_binding(self) -> IOBinding:
        """Return an argument for `run_with_iobinding`. `Program.bind` is the faster call: it copies nothing."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run with the bound inputs and outputs."""
        iobinding.run(run_options)

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> list[OrtValue]:
        """Run like `run`, with values wrapped as OrtValue."""
        return [OrtValue(value) for value in self.run(output_names, input_dict_ort_values, run_options)]

    if not TYPE_CHECKING:  # so that type checkers report unknown names

        def __getattr__(self, name: str) -> Any:
            if instead := _INSTEAD.get(name):
                raise AttributeError(f"a session of rammer has no {name!r}: {instead}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def chosen_target(
    target: str | None,
    providers: Sequence[Provider] | None,
    provider_options: Sequence[Mapping[str, Any]] | None,
    registry: PluginRegistry,
) -> tuple[str | None, str | None]:
    """Return the vDevice, and its number, for ONNX Runtime's names of providers: the first available one.

    Without providers, returns `target`. Raises InputError for unknown names and options, if several are named and none
    is available, and if both are given.
    """
    if target is not None and not isinstance(target, str):
        raise InputError(f"target is a {type(target).__name__}", hint="options of ONNX Runtime are sess_options=")
    if providers is None:
        return target, None
    if target is not None:
        raise InputError("target= and providers= are both given", hint="give one of them")
    named = [provider if isinstance(provider, tuple) else (provider, {}) for provider in providers]
    for n, options in enumerate(provider_options or ()):
        named[n] = named[n][0], {**named[n][1], **options}
    known = [(name, options) for name, options in named if name in PROVIDERS]
    if not known:
        names = ", ".join(name for name, _ in named) or "(none)"
        hint = next((did for name, _ in named if (did := did_you_mean(name, PROVIDERS))), "")
        raise InputError(f"providers= names {names}", hint=hint or f"known are {', '.join(PROVIDERS)}; or use target=")
    for name, options in known:
        if unknown := [key for key in options if key != "device_id"]:
            raise InputError(f"{name} has no option {unknown[0]!r}", hint="device_id is the only one")
    left = {info.name: info for info in registry.devices()} if len(known) > 1 else {}
    for name, options in known:
        target = PROVIDERS[name]
        if target not in left or left[target].available:
            number = options.get("device_id")
            return target, None if target == "cpu" or number is None else str(number)
        logger.log(log.DEVICES, "%s is not available: %s", name, left[target].reason)
    raise InputError(f"none of {', '.join(name for name, _ in known)} is available here", hint="see `rammer doctor`")


def threads_of(options: Any) -> int | None:
    """Return the number of threads that ONNX Runtime's SessionOptions request; None if they do not.

    Other options of how to compute are ignored: rammer decides that itself. Raises InputError for options whose missing
    effect a user would notice.
    """
    for name, hint in (
        ("enable_profiling", "Program.profile, or `rammer bench`, say where time goes"),
        ("optimized_model_filepath", "`rammer compile` writes a program"),
    ):
        if getattr(options, name, None):
            raise InputError(f"sess_options has {name}, which a session of rammer has not", hint=hint)
    return getattr(options, "intra_op_num_threads", 0) or None


def _require_host(device_type: str) -> None:
    if device_type != "cpu":
        raise InputError(
            f"memory of {device_type!r} is not bound by its address",
            hint="run takes arrays of GPUs as they are (DLPack)",
        )


def _at(address: int, element_type: Any, shape: Sequence[int]) -> Array:
    """Return the array at an address."""
    dtype = np.dtype(element_type)
    memory = (ctypes.c_byte * (dtype.itemsize * prod(shape))).from_address(address)
    return np.frombuffer(memory, dtype).reshape(tuple(shape))
