"""Write programs as a C project: sources, weights, a header, CMake files and a self-check."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import chain, starmap
from pathlib import Path

import numpy as np

from rammer import files
from rammer.about import VERSION
from rammer.errors import ArtifactError, DeviceError, InputError
from rammer.ir.plan import ExecutionPlan
from rammer.ir.semantics.expected import expected, of_kernels, without_indices
from rammer.ir.tensor import DType
from rammer.vdevice.base import ExportsProjects, Image, VDevice, random_inputs
from rammer.vdevice.export.tables import manifest, model_source
from rammer.vdevice.image.tables import TableFile
from rammer.vdevice.toolchain import CLANG_REPAIR, FLAGS

HEADER_BYTES = 128  # of weights.bin; also the alignment of each weight
STEPS = 256.0  # least tolerance of the self-check, in roundings of an output's largest element
_NAME = re.compile("[A-Za-z][A-Za-z0-9_]{0,63}")
TARGETS = "targets cpu, cuda and rocm can be; an emulator's programs cannot"
TEMPLATES = {path: path.rpartition("/")[2] for path in ("main.c", "CMakeLists.txt", "include/rammer.h")} | {
    f"src/{file}": file for file in ("model.h", "engine.h", "memory.h", "memory.c", "rammer.c")
}
RUNTIME = {  # files of the project that other packages hold
    "src/cpu.c": ("rammer.vdevice.cpu.export", "cpu.c"),
    "src/system.h": ("rammer.vdevice.cpu.runtime", "system.c"),
    "src/runtime.h": ("rammer.vdevice.cpu.runtime", "runtime.c"),
    "src/half.h": ("rammer.vdevice.toolchain", "include/half.h"),
    "src/bare/math.h": ("rammer.vdevice.toolchain", "include/math.h"),
    "src/bare/string.h": ("rammer.vdevice.toolchain", "include/string.h"),
}
_ONLY_SHARED = {"-fPIC", "-shared", "-w", "-g0", "-std=gnu11", "-O3"}


@dataclass(frozen=True)
class ExportedPlan(ABC):
    """A program to be exported, by its vDevice: its sealed image, and its plan."""

    image: Image
    plan: ExecutionPlan

    @property
    @abstractmethod
    def table(self) -> TableFile:
        """Return the image's table. Raises ArtifactError."""

    @property
    def weights(self) -> list[str]:
        """The names of the image's constants, in the order in which the plan counts them."""
        return list(self.table.header["weights"])

    @abstractmethod
    def files(self, name: str, offsets: Sequence[int]) -> dict[str, str | bytes]:
        """Return the files of the plan `name` by path: src/NAME.c defines it.

        `offsets` are the bytes of weights.bin at which its constants begin.
        """

    def cmake(self, name: str) -> str:
        """Return CMake lines that say how those files are compiled. Without, they are plain C."""
        return ""


def write_project(models: Mapping[str, Sequence[tuple[VDevice, Image]]], folder: Path, name: str) -> None:
    """Write the project of some models' programs, the best first. The folder must be new or empty.

    The first model is checked by the self-check; `name` is the project's. Raises InputError for a name that C does not
    take, and for a model whose programs have other ports; DeviceError for a vDevice whose programs cannot be exported;
    ArtifactError if the folder cannot be written.
    """
    for model, programs in models.items():
        if not _NAME.fullmatch(model):
            raise InputError(f"{model!r} is not a name for C", hint="letters, digits and _, beginning with a letter")
        if len({(image.inputs, image.outputs, *image.state.items()) for _, image in programs}) > 1:
            raise InputError("the programs take different inputs, or give different outputs", hint="export one model")
    content = _sources({model: list(starmap(_exported, programs)) for model, programs in models.items()}, name)
    files.new_folder(folder, content, hint="name a new folder", raises=ArtifactError)


def _exported(device: VDevice, image: Image) -> ExportedPlan:
    if not isinstance(device, ExportsProjects):
        raise DeviceError(f"programs for {device.spec.name!r} ({device.spec.arch}) cannot be exported", hint=TARGETS)
    return device.exported(image)


def _sources(models: Mapping[str, Sequence[ExportedPlan]], name: str) -> dict[str, str | bytes]:
    """Return all files by path."""
    plans = {model: [f"{model}_plan_{n}" for n in range(len(programs))] for model, programs in models.items()}
    every = [program for programs in models.values() for program in programs]
    weights, offsets = _weights(every)
    found: dict[str, str | bytes] = {}

    def add(files: Mapping[str, str | bytes]) -> None:
        for path, content in files.items():
            if any(other.lower() == path.lower() and found[other] != content for other in found):
                raise InputError(f"a model's name makes {path} a file of the project twice", hint="give another name=")
            found[path] = content

    names = [*chain.from_iterable(plans.values())]
    for plan, program, constants in zip(names, every, offsets, strict=True):
        add(program.files(plan, constants))
    hashed = [found[path] for path in sorted(found)]
    digest = hashlib.sha256(b"".join(c if isinstance(c, bytes) else c.encode() for c in hashed) + weights).hexdigest()
    images = {model: programs[0].image for model, programs in models.items()}
    described = name, weights[:HEADER_BYTES], len(weights)
    for model, image in images.items():
        add({f"src/{model}.c": model_source(model, image, plans[model], digest, described)})
    arches = list(dict.fromkeys(p.plan.spec.arch for p in every))
    check, words = _check(every[0])
    words |= {
        "NAME": name,
        "SOURCES": " ".join(p for p in found if p.startswith("src/") and p.endswith(".c") and p != f"src/{name}.c"),
        "EMBEDDED": " ".join(["src/weights.c", "src/check.c", *(p for p in found if p.endswith("_code.c"))]),
        "FLAGS": " ".join(f for f in FLAGS if f not in _ONLY_SHARED),
        "CLANG": " ".join(CLANG_REPAIR),
        "ARCHES": "\n".join(filter(None, [program.cmake(plan) for plan, program in zip(names, every, strict=True)])),
        "GUARD": f"{name.upper()}_H",
        "VERSION": VERSION,
        "MODELS": "\n".join(f"extern const rammer_model {model}_model;" for model in models),
    }
    add({"weights.bin": weights, "check.bin": check})
    add({"manifest.json": manifest(name, VERSION, digest, images, arches)})
    add({path: filled(template, words) for path, template in TEMPLATES.items()})
    add({f"include/{name}.h": filled("models.h", words)})
    add({f"src/{file}.c": embedded(f"{name}_{file}", f"{file}.bin") for file in ("weights", "check")})
    add({path: resources.files(package).joinpath(file).read_text("utf-8") for path, (package, file) in RUNTIME.items()})
    return found


def filled(template: str, words: Mapping[str, str]) -> str:
    """Return a file of project/ with values in place of @WORDS@."""
    text = resources.files("rammer.vdevice.export").joinpath("project", template).read_text("utf-8")
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text


def embedded(symbol: str, file: str) -> str:
    """Return C that defines the bytes of a project's file as a constant array."""
    return filled("embed.c", {"SYMBOL": symbol, "FILE": file})


def _weights(programs: Sequence[ExportedPlan]) -> tuple[bytes, list[list[int]]]:
    """Return weights.bin, and the offsets of each program's weights in it. Equal weights are stored once."""
    parts, at, known = [], HEADER_BYTES, dict[bytes, int]()
    offsets = []
    for program in programs:
        mine = []
        for name in program.weights:
            data = np.ascontiguousarray(program.image.weight(name)).tobytes()
            key = hashlib.sha256(data).digest()
            if key not in known:
                known[key] = at
                parts += [data, b"\0" * (-len(data) % HEADER_BYTES)]
                at += len(data) + -len(data) % HEADER_BYTES
            mine.append(known[key])
        offsets.append(mine)
    body = b"".join(parts)
    header = f"rammer weights 1 {hashlib.sha256(body).hexdigest()}".ljust(HEADER_BYTES - 1) + "\n"
    return header.encode() + body, offsets


def _check(program: ExportedPlan) -> tuple[bytes, dict[str, str]]:
    """Return seeded inputs with the outputs that their definition gives, and the words of main.c that describe them."""
    plan, image = program.plan, program.image

    local = of_kernels(plan)
    state = set(image.state.values())
    seeded = {name: np.zeros_like(a) if name in state else a for name, a in random_inputs(image.inputs, 0).items()}
    try:
        meant = expected(plan.graph, seeded, local)
    except InputError:  # random indices are out of range
        seeded = without_indices(seeded)
        meant = expected(plan.graph, seeded, local)
    taken = [seeded[p.name] for p in image.inputs if p.name not in state]
    given = [meant[p.name] for p in image.outputs if p.name not in image.state]
    data, at = bytearray(), list[int]()
    for array in (*taken, *(m.value for m in given)):
        at.append(len(data))
        data += np.ascontiguousarray(array).tobytes()
        data += b"\0" * (-len(data) % HEADER_BYTES)
    at.append(len(data))
    split = len(taken)
    tolerances = []
    for m in given:
        floats = DType(m.value.dtype.name).is_float
        size = np.abs(m.value[np.isfinite(m.value)].astype(np.float64)) if floats else np.zeros(0)
        error = np.asarray(m.error)
        least = STEPS * 2.0**-23 * float(size.max(initial=0.0))
        tolerances.append(max(least, float(error[np.isfinite(error)].max(initial=0.0))))
    words = {
        "INPUTS": str(split),
        "OUTPUTS": str(len(given)),
        "INPUT_AT": ", ".join(map(str, at[: split + 1])),
        "OUTPUT_AT": ", ".join(map(str, at[split:])),
        "TOLERANCES": ", ".join([*map(repr, tolerances), "0"]),
        "RESULT_BYTES": str(max(at[-1] - at[split], 1)),
    }
    return bytes(data), words
