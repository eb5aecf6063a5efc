"""Launch kernels whose blocks form clusters, cooperatively. cupy cannot say both; cuda-bindings can."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from rammer.errors import DeviceError


class ClusterLaunch:
    """A function of loaded code, in clusters of `cluster` blocks of `threads` threads. Raises DeviceError."""

    def __init__(self, function: int, threads: int, shared_bytes: int, cluster: int, stream: int) -> None:
        try:
            self._driver: Any = importlib.import_module("cuda.bindings.driver")
        except ImportError as error:
            what = f"clusters are launched through cuda-bindings: {error}"
            raise DeviceError(what, hint="pip install cuda-bindings") from error
        self._function, self._cluster = self._driver.CUfunction(function), cluster
        self._config = config = self._driver.CUlaunchConfig()
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.gridDimX, config.gridDimY, config.gridDimZ = cluster, 1, 1
        config.sharedMemBytes, config.hStream = shared_bytes, self._driver.CUstream(stream)
        ids = self._driver.CUlaunchAttributeID
        size, together = self._driver.CUlaunchAttribute(), self._driver.CUlaunchAttribute()
        size.id, together.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        size.value.clusterDim.x, size.value.clusterDim.y, size.value.clusterDim.z = cluster, 1, 1
        together.value.cooperative = 1
        config.attrs, config.numAttrs = [size, together], 2

    def most_blocks(self) -> int:
        """Return how many blocks the GPU holds at once, in whole clusters."""
        found = self._driver.cuOccupancyMaxActiveClusters(self._function, self._config)
        (count,) = self._checked("count clusters", *found)
        return int(count) * self._cluster

    def launch(self, blocks: int, arguments: Sequence[np.generic]) -> None:
        """Enqueue one launch of so many blocks."""
        self._config.gridDimX = blocks
        values = [np.array(a) for a in arguments]
        at = np.array([v.ctypes.data for v in values], np.uint64)
        self._checked("start clusters", *self._driver.cuLaunchKernelEx(self._config, self._function, at.ctypes.data, 0))

    def _checked(self, doing: str, code: Any, *found: Any) -> tuple[Any, ...]:
        if int(code):
            raise DeviceError(
                f"the GPU failed to {doing} of {self._cluster} blocks: {getattr(code, 'name', code)}",
                hint=f"compile without clusters: arch= without :c{self._cluster}",
            )
        return found
