"""A device as data says nothing that contradicts itself."""

from __future__ import annotations

import pytest

from rammer.errors import DeviceError
from rammer.ir.device import Execution, VDeviceSpec


def test_blocks_of_threads_belong_to_simt() -> None:
    with pytest.raises(DeviceError, match=r"'x' has blocks of 64 threads(.|\n)*execution=Execution.SIMT"):
        VDeviceSpec("x", 2, max_threads=64)
    assert VDeviceSpec("x", 2, max_threads=64, execution=Execution.SIMT).max_threads == 64
