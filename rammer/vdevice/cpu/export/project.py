"""Write programs as a C project: sources, weights, a header, CMake files and a self-check."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files as resources
from itertools import chain, starmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from rammer.about import VERSION
from rammer.errors import ArtifactError, InputError
from rammer.ir.operator import ROperator
from rammer.ir.plan import ExecutionPlan
from rammer.ir.semantics.expected import expected
from rammer.ir.semantics.rounding import Bounded, bounded_as, factor_step
from rammer.ir.tensor import Array, DType
from rammer.vdevice.base import Image, random_inputs
from rammer.vdevice.cpu.codegen.compile import Unit
from rammer.vdevice.cpu.export.tables import kernel_names, manifest, model_source, plan_source
from rammer.vdevice.cpu.host import find_arch
from rammer.vdevice.cpu.runtime.table import TABLE, Table
from rammer.vdevice.toolchain import CLANG_REPAIR, FLAGS, INCLUDE

HEADER_BYTES = 128  # of weights.bin; also the alignment of each weight
STEPS = 256.0  # least tolerance of the self-check, in roundings of an output's largest element
_NAME = re.compile("[A-Za-z][A-Za-z0-9_]{0,63}")
_LONG = re.compile(r"\b(?<!long )(unsigned )?long\b(?! long)")  # 32 bits on Windows and WebAssembly
_ONLY_SHARED = {"-fPIC", "-shared", "-w", "-g0", "-std=gnu11", "-O3"}


class ExportedProgram(NamedTuple):
    """A program to be exported: its sealed image, its plan, and the C files of its kernels."""

    image: Image
    plan: ExecutionPlan
    units: Sequence[Unit]


def write_project(
    models: Mapping[str, Sequence[tuple[Image, ExecutionPlan, Sequence[Unit]]]], folder: Path, name: str
) -> None:
    """Write the project of some models' programs, the best first. The folder must be new or empty.

    The first model is checked by the self-check; `name` is the project's. Raises InputError for a name that C does not
    take, and for a model whose programs have other ports; ArtifactError if the folder cannot be written.
    """
    exported = {model: list(starmap(ExportedProgram, programs)) for model, programs in models.items()}
    for model, programs in exported.items():
        if not _NAME.fullmatch(model):
            raise InputError(f"{model!r} is no name for C", hint="letters, digits and _, beginning with a letter")
        if len({(p.image.inputs, p.image.outputs, *p.image.state.items()) for p in programs}) > 1:
            raise InputError("the programs take different inputs, or give different outputs", hint="export one model")
    content = _sources(exported, name)
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise ArtifactError(f"{folder}: cannot be written: it is not empty", hint="name a new folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{folder.name}", dir=folder.parent) as beside:
            whole = Path(beside, "project")
            for path, data in content.items():
                (whole / path).parent.mkdir(parents=True, exist_ok=True)
                (whole / path).write_bytes(data if isinstance(data, bytes) else data.encode())
            whole.replace(folder)  # all of it, or nothing
    except OSError as error:
        raise ArtifactError(f"{folder}: cannot be written: {error.strerror}") from error


def _sources(models: Mapping[str, Sequence[ExportedProgram]], name: str) -> dict[str, str | bytes]:
    """Return all files by path."""
    plans = {model: [f"{model}_plan_{n}" for n in range(len(programs))] for model, programs in models.items()}
    every = [program for programs in models.values() for program in programs]
    weights, offsets = _weights([p.image for p in every])
    found: dict[str, str | bytes] = {"weights.bin": weights}
    arches: dict[str, list[str]] = {}
    for plan, program, constants in zip(chain.from_iterable(plans.values()), every, offsets, strict=True):
        image, spec = program.image, program.plan.spec
        table = Table.from_bytes(image.file(TABLE))
        names = kernel_names(plan, table)
        found[f"src/{plan}.c"] = plan_source(plan, image, table, find_arch(spec.arch), constants)
        for m, unit in enumerate(program.units):
            path = f"src/{plan}_kernels_{m}.c"
            found[path] = _unit(unit, {s: names[s] for s in unit.symbols})
            arches.setdefault(spec.arch, []).append(path)
    digest = hashlib.sha256("".join(str(found[p]) for p in sorted(found) if p != "weights.bin").encode() + weights)
    images = {model: programs[0].image for model, programs in models.items()}
    for model, image in images.items():
        found[f"src/{model}.c"] = model_source(
            model, image, plans[model], digest.hexdigest(), (name, weights[:HEADER_BYTES], len(weights))
        )
    found["manifest.json"] = manifest(name, VERSION, digest.hexdigest(), images, list(arches))
    check, words = _check(every[0])
    found["check.bin"] = check
    words |= {
        "NAME": name,
        "SOURCES": " ".join(p for p in found if p.startswith("src/") and p != f"src/{name}.c"),
        "FLAGS": " ".join(f for f in FLAGS if f not in _ONLY_SHARED),
        "CLANG": " ".join(CLANG_REPAIR),
        "ARCHES": "\n".join(_flags(arch, paths) for arch, paths in arches.items()),
    }
    for template, path in (("main.c", "main.c"), ("CMakeLists.txt", "CMakeLists.txt")):
        found[path] = _filled(template, words)
    for file in ("weights", "check"):
        symbol = {"SYMBOL": f"{name}_{file}", "FILE": f"{file}.bin"}
        found[f"src/{file}.c"] = _filled("embed.c", symbol)
    for header in ("rammer.h", "model.h", "memory.h", "memory.c", "rammer.c"):
        found[f"{'include' if header == 'rammer.h' else 'src'}/{header}"] = _filled(header, {})
    runtime = resources("rammer.vdevice.cpu").joinpath("runtime")
    found["src/runtime.h"] = "\n".join(runtime.joinpath(n).read_text("utf-8") for n in ("system.c", "runtime.c"))
    for path, header in (("half.h", "half.h"), ("bare/math.h", "math.h"), ("bare/string.h", "string.h")):
        found[f"src/{path}"] = (INCLUDE / header).read_text("utf-8")
    found[f"include/{name}.h"] = (
        f"/* The model {name}, exported by rammer {VERSION}: see rammer.h. */\n"
        f'#ifndef {name.upper()}_H\n#define {name.upper()}_H\n#include "rammer.h"\n'
        + "".join(
            f'#ifdef __cplusplus\nextern "C"\n#else\nextern\n#endif\nconst rammer_model {model}_model;\n'
            for model in models
        )
        + "#endif\n"
    )
    return found


def _filled(template: str, words: Mapping[str, str]) -> str:
    text = resources("rammer.vdevice.cpu.export").joinpath("project", template).read_text("utf-8")
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text


def _unit(unit: Unit, names: Mapping[str, str]) -> str:
    """Return a translation unit that exports its kernels under the project's names, with 64-bit integers everywhere."""
    renamed = "".join(f"#define {symbol} {name}\n" for symbol, name in names.items())
    text = _LONG.sub(lambda m: "uint64_t" if m[1] else "int64_t", unit.text)
    helpers = '\n#include "half.h"\n' if "_Float16" in text else ""
    return f"#include <stdint.h>\n{renamed}{text}{helpers}"


def _flags(arch: str, paths: Sequence[str]) -> str:
    """Return CMake lines that compile an arch's kernels for it."""
    target = find_arch(arch)
    return (
        f"set(ARCH_FLAGS {' '.join(target.cc)})\nif(ZIG)\n  set(ARCH_FLAGS {' '.join(target.zig)})\nendif()\n"
        f"set_source_files_properties(\n  {' '.join(paths)}\n"
        '  PROPERTIES COMPILE_OPTIONS "${KERNEL_FLAGS};${ARCH_FLAGS}")'
    )


def _weights(images: Sequence[Image]) -> tuple[bytes, list[list[int]]]:
    """Return weights.bin, and the offsets of each image's weights in it. Equal weights are stored once."""
    parts, at, known = [], HEADER_BYTES, dict[bytes, int]()
    offsets = []
    for image in images:
        mine = []
        for name in Table.from_bytes(image.file(TABLE)).header["weights"]:
            data = np.ascontiguousarray(image.weight(name)).tobytes()
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


def _check(program: ExportedProgram) -> tuple[bytes, dict[str, str]]:
    """Return seeded inputs with the outputs that their definition gives, and the words of main.c that describe them."""
    plan, image = program.plan, program.image

    def local(n: int, op: ROperator, given: Mapping[str, Array]) -> list[Bounded]:
        kernel = plan.kernels[n]
        return bounded_as(op.operation.expr, kernel.form, given, factor_step=factor_step(kernel), careful=True)

    state = set(image.state.values())
    seeded = {
        name: np.zeros_like(array) if name in state else array for name, array in random_inputs(image.inputs, 0).items()
    }
    try:
        meant = expected(plan.graph, seeded, local)
    except InputError:  # random indices are out of range
        seeded = {n: a if DType(a.dtype.name).is_float else np.zeros_like(a) for n, a in seeded.items()}
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
