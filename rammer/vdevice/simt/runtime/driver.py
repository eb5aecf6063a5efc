"""Define what a platform's driver does for the runtime: one GPU, its memory, and one stream on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from rammer.ir.tensor import Array, TensorType


@dataclass(frozen=True, slots=True)
class Resident:
    """An array of another library in a GPU's memory; valid as long as its `owner` lives."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    number: int  # of the GPU
    contiguous: bool
    owner: Any


Way: TypeAlias = Literal["HostToDevice", "DeviceToHost", "DeviceToDevice"]


class Kernel(Protocol):
    """The entry of a program."""

    def most_blocks(self, multiprocessors: int) -> int:
        """Return the number of blocks that this GPU of so many multiprocessors holds at once."""

    def launch(self, blocks: int, arguments: Sequence[np.generic]) -> None:
        """Enqueue one cooperative launch: it is refused, instead of hanging, if its blocks cannot all be resident."""


class Driver(Protocol):
    """One GPU, and one stream on it, for one program. Memory is an address, and is held until `close`.

    A platform inherits the copies. All methods but `close` are called inside of `using`.
    """

    number: int
    records: bool  # whether launches are recorded as a graph, unless RAMMER_GPU_GRAPH says otherwise

    def using(self, doing: str) -> AbstractContextManager[None]:
        """Make the GPU current for this thread; raise the platform's errors as DeviceError "failed to `doing`"."""

    def load(self, code: bytes, threads: int, shared_bytes: int, cluster: int = 1) -> Kernel:
        """Load machine code, to be launched in blocks of this many threads and bytes of shared memory.

        `cluster`: blocks of a cluster.
        """

    def allocate(self, nbytes: int, *, zeros: bool = False, uncached: bool = False) -> int:
        """Allocate memory aligned to 256 bytes, uninitialised or zeroed. `uncached`: no cache holds stores back."""

    def enqueue_copy(self, target: int, source: int, nbytes: int, way: Way) -> None:
        """Enqueue a copy of more than 0 bytes. A source on the host may change when this returns."""

    def finish(self) -> None:
        """Wait for all work on the stream."""

    def write(self, address: int, array: Array) -> None:
        """Enqueue a copy of a host array. The array may change when this returns."""
        flat = np.ascontiguousarray(array)
        if flat.nbytes:
            self.enqueue_copy(address, flat.ctypes.data, flat.nbytes, "HostToDevice")

    def read(self, address: int, array: Array) -> Array:
        """Fill a contiguous host array, after all that was enqueued before."""
        if array.nbytes:
            self.enqueue_copy(array.ctypes.data, address, array.nbytes, "DeviceToHost")
        self.finish()
        return array

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Enqueue a copy in the GPU's memory."""
        if nbytes:
            self.enqueue_copy(target, source, nbytes, "DeviceToDevice")

    def array(self, kind: TensorType) -> tuple[Any, int]:
        """Return a new, uninitialised array of the platform, and its address.

        Its elements are those of the dtype's carrier. It outlives the driver. Its `get` copies it to the host.
        """

    def output(self, address: int, kind: TensorType) -> Any:
        """Enqueue a copy to a new array of the platform, and return the array."""
        found, target = self.array(kind)
        self.copy(target, address, kind.nbytes)
        return found

    def synchronize(self) -> None:
        """Wait for all work enqueued on the GPU, by any library."""

    def time_us(self, enqueue: Callable[[], None]) -> float:
        """Return the GPU's microseconds for what a function enqueues, by events."""

    def record(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Record what a function enqueues as a graph; return a function that launches the graph."""

    def resident(self, value: Any) -> Resident:
        """Return the array of another library, without a copy. Raises BufferError if this platform cannot read it."""

    def follow(self) -> None:
        """Let the stream wait for work enqueued on the platform's current stream."""

    def ticks(self, nanoseconds: float) -> float:
        """Convert nanoseconds to ticks of `mk_now_ns` on this GPU."""

    def close(self) -> None:
        """Free all memory of the driver. May be called more than once."""


def run_arguments(
    table: int, bounds: int, waits: int, args: int, state: int, program: int, span: int, limit_ticks: float
) -> tuple[np.generic, ...]:
    """Return the megakernel's arguments; the first five are addresses."""
    addresses = (np.uint64(a) for a in (table, bounds, waits, args, state))
    return (*addresses, np.int32(program), np.int32(span), np.uint64(limit_ticks))


def uploaded(driver: Driver, array: Array) -> int:
    """Upload a host array to new memory; return its address."""
    address = driver.allocate(array.nbytes)
    driver.write(address, array)
    return address
