"""Seeded tensors: what is mapped into memory is what is said to be there, and nothing around it may be touched."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from rammer.ir.tensor import Digit, DType, Encoding, Layout, TensorType, channel_blocked, unpack
from rammer.vdevice.cpu.tune.seeded import PAGE, Seeded, Seeds, TrialMemory, bytes_at, padded

ROWS = Layout((Digit(1, 16), Digit(0), Digit(1, 1, 16)))
ENCODED = Layout((Digit(1, 32), Digit(0), Digit(1, 1, 32)), Encoding(DType.BF16, 3, 512))


@pytest.fixture
def seeds() -> Iterator[Seeds]:
    with Seeds() as made:
        yield made


def seeded(seeds: Seeds, kind: TensorType, order: int = 0) -> Seeded:
    return seeds.floats(kind, order, -2, False) if kind.dtype.is_float else seeds.integers(kind, order, 0, 2)


@pytest.mark.parametrize(
    "kind",
    [
        TensorType((7, 300)),
        TensorType(()),
        TensorType((3, 0, 2)),
        TensorType((700, 1000)),  # more than a period
        TensorType((13, 17), DType.F64),
        TensorType((13, 17), DType.BF16),
        TensorType((13, 17), DType.BOOL),
        TensorType((40, 11), DType.I64),
        TensorType((24, 48), layout=ROWS),
        TensorType((24, 41), layout=ROWS),  # padded
        TensorType((1, 32, 5, 6), layout=channel_blocked(4, 8)),
        TensorType((1, 3, 5, 6), layout=channel_blocked(4, 8)),
        TensorType((48, 96), layout=ENCODED),
        TensorType((48, 90), layout=ENCODED),
    ],
    ids=str,
)
def test_elements_lie_where_they_are_said_to(seeds: Seeds, kind: TensorType) -> None:
    inputs = [seeded(seeds, kind, order) for order in range(3)]
    region = TrialMemory([8], inputs, 0, seeds.nothing())
    everywhere = [np.asarray(i) for i in np.indices(kind.shape)]
    wholes = [tensor.at(everywhere) for tensor in inputs]
    for start, whole in zip(region.starts[1:], wholes, strict=False):
        flat = bytes_at(start, kind.nbytes).view(
            kind.dtype.numpy if not kind.layout or not kind.layout.encoding else "u2"
        )
        if kind.layout and kind.layout.encoding:
            flat = flat.view(DType.BF16.numpy)
        found = unpack(flat, kind.layout, kind.shape) if kind.layout else flat.reshape(kind.shape)
        np.testing.assert_array_equal(found.astype(whole.dtype), whole)
    if kind.size > 100:
        assert (wholes[0] != wholes[1]).mean() > 0.4 and (wholes[1] != wholes[2]).mean() > 0.4
    region.unmap()


def crash(act: Callable[..., object]) -> int:
    """The signal that ends a child which acts."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        try:
            act()
        finally:
            os._exit(0)
    return -os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("shape", [(40, 48), (40, 41)])
def test_what_is_around_is_guarded(seeds: Seeds, shape: tuple[int, ...]) -> None:
    kind = TensorType(shape, layout=ROWS)
    tensor = seeded(seeds, kind)
    assert padded(kind) == (shape == (40, 41))
    region = TrialMemory([4096], [tensor], 64, seeds.nothing())
    output, given, scratch = region.starts
    assert (bytes_at(output, 4096) == 0xFF).all() and (bytes_at(scratch, 64) == 0xFF).all()
    bytes_at(output, 4096)[:] = bytes_at(scratch, 64)[:] = 0
    for start, nbytes in ((output, 4096), (given, kind.nbytes), (scratch, 64)):
        end = -(-(start + nbytes) // PAGE) * PAGE
        assert end - start - nbytes < 128
        assert crash(bytes_at(end, 1).sum) in (signal.SIGSEGV, signal.SIGBUS)

    assert not crash(bytes_at(given, 1).sum)
    assert crash(lambda: bytes_at(given, 1).fill(0)) in (signal.SIGSEGV, signal.SIGBUS)
    region.unmap()
    assert crash(bytes_at(given, 1).sum)
