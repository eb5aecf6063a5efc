"""What a platform's driver does for the runtime: one GPU, its memory, and one stream on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rammer.ir.tensor import Array, TensorType


@dataclass(frozen=True, slots=True)
class Resident:
    """Somebody's array in a GPU's memory, which lives as long as its `owner`."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    number: int  # of the GPU
    contiguous: bool
    owner: Any


class Kernel(Protocol):
    """The entry of a program."""

    def blocks_per_multiprocessor(self) -> int:
        """Blocks that a multiprocessor of this GPU holds at once."""

    def launch(self, blocks: int, arguments: Sequence[np.generic]) -> None:
        """Enqueue one launch: cooperative, so that it is refused, not hung, if its blocks cannot all be there."""


class Driver(Protocol):
    """One GPU, and one stream on it, for one program. Memory is an address, and is held until `close`.

    Everything but `close` is called inside of `using`.
    """

    number: int
    records: bool  # whether several launches are recorded as a graph, unless RAMMER_GPU_GRAPH says otherwise

    def using(self, doing: str) -> AbstractContextManager[None]:
        """The GPU in use by this thread; the platform's errors become DeviceErrors: it failed to … ("run it")."""

    def load(self, code: bytes, threads: int, shared_bytes: int) -> Kernel:
        """Machine code, to be launched in blocks of so many threads with so much shared memory."""

    def allocate(self, nbytes: int, *, zeros: bool = False) -> int:
        """New memory on a boundary of 256 bytes, with anything in it or with zeros."""

    def write(self, address: int, array: Array) -> None:
        """Enqueue a copy of an array of the host, which may change when this returns."""

    def read(self, address: int, array: Array) -> Array:
        """Fill a contiguous array of the host, once all that was enqueued before is done."""

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Enqueue a copy in the GPU's memory."""

    def array(self, kind: TensorType) -> tuple[Any, int]:
        """A new array of the platform, which lives without the driver, of elements' carriers, with anything in it; and
        its address. Its `get` copies it to the host.
        """

    def output(self, address: int, kind: TensorType) -> Any:
        """Enqueue a copy to a new array of the platform."""

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


def uploaded(driver: Driver, array: Array) -> int:
    """New memory with an array of the host."""
    address = driver.allocate(array.nbytes)
    driver.write(address, array)
    return address
