"""Load and run saved programs on this machine's CPU, without a compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rammer.vdevice.base import CompiledOnly, Executable, Image, VDevice
from rammer.vdevice.cpu.host import HERE, choose_arch, choose_num_veus, host
from rammer.vdevice.cpu.runtime.executable import CpuExecutable, RunMemory
from rammer.vdevice.cpu.runtime.table import TABLE, Table
from rammer.vdevice.image.memory import share_equal


class CpuRunner(VDevice):
    """The CPU as a device that only runs programs, without a spec.

    `arch` and `device` are checked as for CpuVDevice.
    """

    def __init__(self, *, arch: str | None = None, device: str | int | None = None) -> None:
        self._host = host()
        self._arch = choose_arch(arch, self._host)
        self._num_veus = choose_num_veus(device, self._host)

    @property
    def _is_here(self) -> bool:
        return self._host.runs(self._arch)

    def load(self, image: Image) -> CpuExecutable | CompiledOnly:
        """Return an image ready to run. Raises ArtifactError if it is not for this machine.

        A device for another CPU loads nothing: its programs raise when they are run.
        """
        if self._is_here:
            return CpuExecutable(image, self._host)
        return CompiledOnly(
            f"the program is for {self._arch.name!r}: {self._host.lacks(self._arch)}",
            f'save it and load it on such a machine; arch="{self._arch.name}@{HERE}" emulates it',
        )

    def load_together(self, images: Sequence[Image]) -> list[tuple[Image, Executable]]:
        """Return images ready to run, one at a time: in one arena, and with equal weights in memory once."""
        if not self._is_here:
            return super().load_together(images)
        weights = share_equal([image.weights for image in images])
        memory = RunMemory([Table.from_bytes(image.file(TABLE)).header for image in images])
        found = [replace(image, weights=own) for image, own in zip(images, weights, strict=True)]
        return [(image, CpuExecutable(image, self._host, memory)) for image in found]
