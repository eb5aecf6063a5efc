"""What a platform's driver does for the runtime: one GPU, its memory, and one stream on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rammer.ir.tensor import Array, TensorType


@dataclass(frozen=True, slots=True)
class Resident:
    """Somebody's array in a GPU's memory. `data` is the platform's word for where it lies, and keeps it alive."""

    data: Any
    dtype: str
    shape: tuple[int, ...]
    number: int  # of the GPU
    contiguous: bool


class Buffer(Protocol):
    """Bytes of the GPU's memory. Copies run in the order of the driver's stream."""

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def part(self, at: int, nbytes: int) -> Buffer:
        """A part of it, which is not copied."""

    def write(self, array: Array) -> None:
        """Copy an array of the host here; it may change when this returns."""

    def read(self) -> NDArray[np.uint8]:
        """The bytes, once all that was enqueued before is done."""

    def take(self, source: Resident) -> None:
        """Copy an array of the GPU here."""

    def copied(self, kind: TensorType) -> Any:
        """A copy as an array of the platform, which lives on without the driver. bfloat16 becomes its bits, uint16."""


class Kernel(Protocol):
    """The entry of a program."""

    def blocks_per_multiprocessor(self) -> int:
        """Blocks that a multiprocessor of this GPU holds at once."""

    def launch(self, blocks: int, arguments: Sequence[np.generic]) -> None:
        """Enqueue one launch: cooperative, so that it is refused, not hung, if its blocks cannot all be there."""


class Driver(Protocol):
    """One GPU, and one stream on it, for one program. Everything but `close` is called inside of `using`."""

    @property
    def number(self) -> int: ...

    def using(self, doing: str) -> AbstractContextManager[None]:
        """The GPU in use by this thread; the platform's errors become DeviceErrors: it failed to … ("run it")."""

    def load(self, code: bytes, threads: int, shared_bytes: int) -> Kernel:
        """Machine code, to be launched in blocks of so many threads with so much shared memory."""

    def memory(self, nbytes: int) -> Buffer:
        """New memory on a boundary of 256 bytes, with anything in it."""

    def zeros(self, nbytes: int) -> Buffer:
        """New memory with zeros in it."""

    def synchronize(self) -> None:
        """Wait for all that was enqueued on the GPU, by whomever."""

    def time_us(self, enqueue: Callable[[], None]) -> float:
        """Microseconds on the GPU of what a function enqueues, by events."""

    def record(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """What a function enqueues as a graph: it runs whenever the result is called."""

    def resident(self, value: Any) -> Resident:
        """An array of another library, not copied. Raises BufferError if it cannot be read on this platform."""

    def follow(self) -> None:
        """Let the stream wait for what was enqueued on the platform's current one."""

    def ticks(self, nanoseconds: float) -> float:
        """So many nanoseconds in those of `mk_now_ns` on this GPU."""

    def close(self) -> None:
        """Free all that the driver holds; more than once is fine."""


def run_arguments(
    table: int, bounds: int, waits: int, args: int, state: int, program: int, span: int, limit_ticks: float
) -> tuple[np.generic, ...]:
    """The megakernel's arguments; the first five are addresses."""
    addresses = (np.uint64(a) for a in (table, bounds, waits, args, state))
    return (*addresses, np.int32(program), np.int32(span), np.uint64(limit_ticks))


def uploaded(driver: Driver, array: Array) -> Buffer:
    """New memory with an array of the host."""
    buffer = driver.memory(array.nbytes)
    buffer.part(0, array.nbytes).write(array)
    return buffer
