"""Load saved programs, and write several into one file. Never compiles."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import Any

from rammer.errors import ArtifactError, DeviceError, UnsuitableError
from rammer.plugins import DeviceInfo, PluginRegistry
from rammer.runtime import artifact
from rammer.runtime.joint import JointProgram, PartImage
from rammer.runtime.program import Program
from rammer.runtime.report import Report
from rammer.vdevice.base import Image


def load_program(
    path: str | os.PathLike[str],
    *,
    device: str | int | None = None,
    registry: PluginRegistry | None = None,
) -> Program:
    """Load a saved program without compiling. Raises ArtifactError, or DeviceError if its vDevice is missing.

    Of a file with several programs, it loads the first that runs here. Several models with parts become a JointProgram.
    A program contains machine code: load only files that you trust.
    """
    (ends, parts), reasons = artifact.ends(path), list[str]()
    if parts:
        return _joint(
            [(models, *artifact.load(path, end)) for models, end in zip(parts, ends, strict=True)], device, registry
        )
    for end in ends:
        image, report = artifact.load(path, end)
        try:
            return _program(image, report, device, registry or _registry_of(image.target))
        except (UnsuitableError, DeviceError) as error:
            if len(ends) == 1:
                raise
            reasons.append(error.what)
    raise UnsuitableError(
        f"{os.fspath(path)}: none of its {len(ends)} programs runs here: {'; '.join(dict.fromkeys(reasons))}",
        hint="compile the model for this machine, too",
    )


def _program(image: Image, report: dict[str, Any], device: str | int | None, registry: PluginRegistry) -> Program:
    vdevice = registry.open(image.target, device=device)
    try:
        return Program(image, vdevice, Report.from_json(report))
    except BaseException:
        vdevice.close()
        raise


def _joint(
    parts: Sequence[tuple[tuple[str, ...], Image, dict[str, Any]]],
    device: str | int | None,
    registry: PluginRegistry | None,
) -> JointProgram:
    """Return the program of several models that has these parts: their models, images and reports."""
    target = parts[0][1].target
    vdevice = (registry or _registry_of(target)).open(target, device=device)
    try:
        return JointProgram([PartImage(m, image, Report.from_json(report)) for m, image, report in parts], vdevice)
    except BaseException:
        vdevice.close()
        raise


def _registry_of(target: str) -> PluginRegistry:
    """Return vDevices to run a program on: the built-in ones, with those of plugins only if the target needs it."""
    own = PluginRegistry(third_party=False, to_run=True)
    return own if target in own.vdevices() else PluginRegistry(to_run=True)


def save_together(programs: Sequence[Program], path: str | os.PathLike[str]) -> None:
    """Write programs of one model into one file, the best first. A machine loads the first that it can run.

    Raises ArtifactError, also for programs whose inputs and outputs differ.
    """
    ports = {(program.inputs, program.outputs, tuple(program.state_pairs.items())) for program in programs}
    if len(ports) != 1:
        raise ArtifactError(
            f"{len(programs)} programs with different inputs, outputs or state cannot share a file",
            hint="save each alone",
        )
    if any(isinstance(program, JointProgram) and len(program.parts) > 1 for program in programs):
        raise ArtifactError("a program with parts cannot share a file with others", hint="compile with together=[]")
    with tempfile.TemporaryDirectory() as folder:
        parts = [os.path.join(folder, str(n)) for n in range(len(programs))]
        for program, part in zip(programs, parts, strict=True):
            program.save(part)
        artifact.save_together(parts, path)


def unpickled(data: bytes) -> Program:
    """Load a program from the bytes of its file."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "program")
        with open(path, "wb") as file:
            file.write(data)
        return load_program(path)  # its weights are mapped: the file may be deleted


def devices(registry: PluginRegistry | None = None) -> list[DeviceInfo]:
    """Return every registered vDevice, with the reason if it cannot run here."""
    return (registry or PluginRegistry()).devices()
