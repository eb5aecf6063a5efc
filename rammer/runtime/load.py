"""Load saved programs, and write several into one file. Never compiles."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from rammer import files
from rammer.errors import ArtifactError, DeviceError, UnsuitableError
from rammer.plugins import DeviceInfo, PluginRegistry, device_of
from rammer.runtime import artifact
from rammer.runtime.joint import JointProgram, PartImage
from rammer.runtime.program import Program
from rammer.runtime.report import Report
from rammer.vdevice.base import Image, VDevice

IMPORTING = {"shapes", "dims", "constants", "example", "links"}  # keywords of the old meaning of `load`
ONNX = b"\x08"  # first byte of a ModelProto that begins with its version, as all exporters write them


def load(
    path: str | os.PathLike[str],
    *,
    device: str | int | None = None,
    threads: int | None = None,
    registry: PluginRegistry | None = None,
    **importing: Any,
) -> Program:
    """Load a saved program without compiling. A program contains machine code: load only files that you trust.

    Args:
        path: A file that `Program.save`, `save_together` or `rammer compile` has written. Of a file with several
            programs, the first one that runs here is loaded. Several models with parts become a JointProgram.
        device: Which device of the target: the number of a GPU, or of vEUs on a CPU.
        threads: Number of vEUs on a CPU, the same as `device`.
        registry: The plugins that may offer the target; by default the built-in ones, else those installed.
        importing: Deprecated: `load` of a model imports it, as from_onnx, from_torch and from_tensorflow do now.

    Raises:
        ArtifactError: The file is damaged, or written by a release with another format or ABI.
        UnsuitableError: The program is for another machine.
        DeviceError: Its vDevice is missing or unavailable.
    """
    if unknown := importing.keys() - IMPORTING:
        raise TypeError(f"load() got an unexpected keyword argument {min(unknown)!r}")
    if importing or not isinstance(path, str | os.PathLike) or files.first_bytes(path, 1) == ONNX:
        return _imported(path, importing)  # type: ignore[no-any-return]

    def open_device(target: str) -> VDevice:
        return (registry or _registry_of(target)).open(target, device=device_of(target, device, threads))

    (ends, parts), reasons = artifact.ends(path), list[str]()
    if parts:
        return _joint([(m, *artifact.load(path, end)) for m, end in zip(parts, ends, strict=True)], open_device)
    for end in ends:
        image, report = artifact.load(path, end)
        try:
            return _program(image, report, open_device(image.target))
        except (UnsuitableError, DeviceError) as error:
            if len(ends) == 1:
                raise
            reasons.append(error.what)
    raise UnsuitableError(
        f"{os.fspath(path)}: none of its {len(ends)} programs runs here: {'; '.join(dict.fromkeys(reasons))}",
        hint="compile the model for this machine, too",
    )


def load_program(path: str | os.PathLike[str], **options: Any) -> Program:
    """Load a saved program. Deprecated: the old name of `load`."""
    warnings.warn("rammer.load_program is rammer.load now", DeprecationWarning, stacklevel=2)
    return load(path, **options)


def _imported(model: Any, options: dict[str, Any]) -> Any:
    """Return a model's Graph, as `load` did before 0.5."""
    from rammer.compiler.models import import_model  # old callers have the compiler

    text = "rammer.load of a model is rammer.from_onnx, from_torch or from_tensorflow now; load is for saved programs"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    return import_model(model, **options)


def _program(image: Image, report: dict[str, Any], vdevice: VDevice) -> Program:
    try:
        return Program(image, vdevice, Report.from_json(report))
    except BaseException:
        vdevice.close()
        raise


def _joint(
    parts: Sequence[tuple[tuple[str, ...], Image, dict[str, Any]]], open_device: Callable[[str], VDevice]
) -> JointProgram:
    """Return the program of several models that has these parts: their models, images and reports."""
    vdevice = open_device(parts[0][1].target)
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
    """Write programs of one model into one file. A machine loads the first that it can run.

    Args:
        programs: Programs with equal inputs, outputs and state, the best first.
        path: The file; it appears as a whole or not at all.

    Raises:
        ArtifactError: The programs differ in their ports, have parts, or the path cannot be written.
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
        return load(path)  # its weights are mapped: the file may be deleted


def devices(registry: PluginRegistry | None = None) -> list[DeviceInfo]:
    """Return every registered vDevice, with the reason if it cannot run here."""
    return (registry or PluginRegistry()).devices()
