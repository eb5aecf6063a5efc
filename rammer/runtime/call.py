"""Call compiled networks: with inputs by name or in order, like a function or an ONNX Runtime session."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, overload

import numpy as np

from rammer.errors import InputError, did_you_mean
from rammer.ir.tensor import Array, DType

_BEYOND_NUMPY = tuple(d for d in DType if d.carrier is not d.numpy)
HOST_MEMORY = (1, 3, 11)  # DLPack's numbers of CPU memory: plain, pinned for CUDA, pinned for ROCm


class Runnable(ABC):
    """A network that computes named outputs from named inputs."""

    _try_run: Callable[[Any], dict[str, Any] | None] | None = None  # returns all usual outputs, or None: not exact

    @abstractmethod
    def _names(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return the names of the inputs that a call takes and of the outputs that it returns, in order."""

    @abstractmethod
    def _evaluate(self, inputs: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
        """Return these outputs by name."""

    def _named_only(self) -> Sequence[str]:
        """Return the outputs that a call returns only if it names them."""
        return ()

    @overload
    def run(self, inputs: Mapping[str, Any], /) -> dict[str, Any]: ...

    @overload
    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: None = None
    ) -> list[Any]: ...

    def run(self, output_names: Any = None, input_feed: Any = None, run_options: Any = None) -> Any:
        """Run once: `run({name: array})` returns outputs by name, `run(names, {name: array})` returns them as a list.

        Args:
            output_names: Names of outputs, or the inputs if nothing else is given. None or [] means all outputs.
            input_feed: Arrays by name, with exactly the element types of the inputs. Python numbers, lists of them and
                NumPy scalars are converted if that is exact.
            run_options: None: ONNX Runtime's have no counterpart.

        Raises:
            InputError: A name, dtype, rank or shape is wrong. Nothing has run then.
        """
        if run_options is not None:
            raise InputError("a run has no options", hint="leave out run_options")
        usual = wanted = self._names()[1]
        inputs = output_names if input_feed is None else input_feed
        if input_feed is not None and output_names:
            wanted = [output_names] if isinstance(output_names, str) else output_names
            names = (*usual, *self._named_only())
            if unknown := [n for n in wanted if n not in names]:
                raise InputError(
                    f"no output named {unknown[0]!r}; outputs are {', '.join(names)}",
                    hint=did_you_mean(str(unknown[0]), names),
                )
        outputs = self._try_run(inputs) if self._try_run is not None else None
        if outputs is None:
            outputs = self._evaluate(_mapping(inputs), wanted)
        return outputs if input_feed is None else [outputs[name] for name in wanted]

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Run with inputs in order or by name. Return the output, or a tuple of several."""
        names, wanted = self._names()
        if len(arrays) > len(names) or (len(arrays) < len(names) and arrays and not named):
            raise InputError(f"{len(arrays)} arrays given, the program takes {len(names)}: {', '.join(names)}")
        inputs = dict(zip(names, arrays, strict=False))
        if twice := [n for n in named if n in inputs]:
            raise InputError(f"input {twice[0]!r} is given twice", hint="in order, or by its name")
        outputs = self.run({**inputs, **named})
        values = tuple(outputs[name] for name in wanted)
        return values[0] if len(values) == 1 else values


def _mapping(inputs: Any) -> Mapping[str, Any]:
    if type(inputs) is not dict and not isinstance(inputs, Mapping):  # isinstance of an ABC is slow
        raise InputError(f"inputs are a {type(inputs).__name__}", hint="run({name: array}); calls take arrays in order")
    return inputs


def check_names(
    given: Mapping[str, Any], known: Collection[str], optional: Collection[str] = (), *, what: str = "input"
) -> None:
    """Raise InputError for an unknown or missing input (or other `what`)."""
    if unknown := [n for n in given if n not in known]:
        raise InputError(
            f"no {what} named {unknown[0]!r}; {what}s are {', '.join(known) or '(none)'}",
            hint=did_you_mean(str(unknown[0]), known),
        )
    if missing := [n for n in known if n not in given and n not in optional]:
        raise InputError(f"missing {what}s: {', '.join(missing)}")


def on_gpu(value: Any) -> bool:
    """Check whether an array is in memory that the host cannot read."""
    if isinstance(value, np.ndarray | np.generic) or getattr(value, "is_cpu", False):
        return False
    if hasattr(value, "__dlpack_device__"):
        return int(value.__dlpack_device__()[0]) not in HOST_MEMORY
    return hasattr(value, "__cuda_array_interface__")


def as_array(name: str, value: Any, dtype: DType) -> Array:
    """Return the value as a NumPy array, without a copy of memory from NumPy or DLPack.

    Python numbers have no element type: they get `dtype` if that is exact. An array keeps its element type. Raises
    InputError for any other value.
    """
    if not isinstance(value, np.ndarray | np.generic) and hasattr(value, "__dlpack__"):
        if getattr(value, "requires_grad", False):
            value = value.detach()
        try:
            return _from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(f"input {name!r}: cannot be read through DLPack: {error}") from error
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"input {name!r}: not an array: {error}") from error
    if isinstance(value, np.ndarray) or array.dtype == dtype.numpy or array.dtype.kind not in "biuf":
        return array
    return _exact(name, array, dtype)


def _from_dlpack(value: Any) -> Array:
    """Convert through DLPack. Tensors of torch use `numpy()`, which is faster; bfloat16 and float8 go as integers."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return np.from_dlpack(value)
    name = str(value.dtype).removeprefix("torch.")
    dtype = next((d for d in _BEYOND_NUMPY if d.value == name), None)
    if dtype is None:
        return np.asarray(value.numpy())
    return np.asarray(value.view(getattr(torch, f"int{8 * dtype.itemsize}")).numpy()).view(dtype.numpy)


def _exact(name: str, numbers: Array, dtype: DType) -> Array:
    """Convert the numbers to another element type. Raises InputError if one of them changes."""
    with np.errstate(all="ignore"):
        converted = numbers.astype(dtype.numpy)
        kept = np.equal(converted.astype(numbers.dtype), numbers) | (numbers != numbers)
    kind = numbers.dtype.kind
    fits = (kind != "f" or dtype.is_float) and (kind == "b") == (dtype is DType.BOOL)
    if fits and kept.all():
        return converted
    seen = numbers[~kept].flat[0] if fits else numbers.flat[0] if numbers.size else numbers
    raise InputError(
        f"input {name!r}: {seen} is no {dtype.value}",
        hint=f"say that it may be rounded: np.asarray({name}, {dtype.value!r})",
    )
