"""A voice detector to export, and how a test compiles the project that it becomes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import rammer
from rammer.runtime.program import Program
from rammer.vdevice.toolchain import Compiler, c_compiler

WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Werror")
FLAGS = ("-std=gnu11", "-O1", *WARNINGS)


def detector() -> Any:
    """A step of a recurrent voice detector, with a table of which it takes a row."""
    random = np.random.default_rng(3)

    def constant(name: str, *shape: int) -> Any:
        return numpy_helper.from_array((random.standard_normal(shape) / 8).astype(np.float32), name)

    nodes = [
        helper.make_node("Gather", ["speakers", "speaker"], ["row"]),
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["h", "u"], ["b"]),
        helper.make_node("Sum", ["a", "b", "row"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["h_out"]),
        helper.make_node("MatMul", ["h_out", "v"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["y"]),
    ]
    weights = [constant("w", 65, 96), constant("u", 96, 96), constant("v", 96, 5), constant("speakers", 7, 96)]
    f32 = TensorProto.FLOAT
    ports = [("x", f32, [3, 65]), ("speaker", TensorProto.INT64, [1]), ("h", f32, [3, 96])]
    inputs = [helper.make_tensor_value_info(*port) for port in ports]
    outputs = [helper.make_tensor_value_info(*port) for port in (("y", f32, [3, 5]), ("h_out", f32, [3, 96]))]
    graph = helper.make_graph(nodes, "detector", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def compiled(**options: Any) -> Program:
    return rammer.compile(detector(), state={"h_out": "h"}, device=options.pop("device", 2), **options)


def gcc() -> Compiler:
    """Return gcc, which has sanitizers; the test is skipped where it is missing."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here")
    return Compiler(("gcc",), "gcc", "")


def include(folder: Path) -> tuple[str, ...]:
    return f"-I{folder}/include", f"-I{folder}/src", f"-Wa,-I{folder}/src"


def build(
    folder: Path,
    target: Path,
    *link: str,
    shared: bool = False,
    flags: tuple[str, ...] = (),
    compiler: Compiler | None = None,
    main: Path | None = None,
    objects: Path | None = None,
) -> Path:
    """Compile a project as its CMakeLists.txt does, and link it.

    `flags` go to the compiler and the linker. `main` stands in for the self-check. Object files that are in `objects`
    already are used.
    """
    compiler, objects = compiler or c_compiler(), objects or target.parent / f"{target.name}.objects"
    made = compile_only(folder, objects, () if shared else (main or folder / "main.c",), flags, compiler)
    kind = ("-shared",) if shared else ()
    command = [*compiler.command, *kind, *flags, *map(str, made), *link, "-o", str(target)]
    subprocess.run(command, check=True, cwd=folder)
    return target


def compile_only(
    folder: Path, objects: Path, mains: tuple[Path, ...], flags: tuple[str, ...], compiler: Compiler
) -> list[Path]:
    """Compile a project's sources and `mains` to object files, hand-written ones with all warnings. Needs no libc."""
    objects.mkdir(exist_ok=True)
    listed = (folder / "CMakeLists.txt").read_text()
    chosen = re.findall(
        r"set\(ARCH_FLAGS (.*)\)\nif\(ZIG\)\n  set\(ARCH_FLAGS (.*)\)\nendif\(\)\nset.*\n  (.*)\n", listed
    )
    flags_of = {
        path: (zig if compiler.family == "zig" else cc).split() for cc, zig, of in chosen for path in of.split()
    }
    kernel_flags = [flag for words in re.findall(r"KERNEL_FLAGS (-.*)\)", listed) for flag in words.split()]
    if compiler.family == "gcc":
        kernel_flags = [flag for flag in kernel_flags if "mllvm" not in flag and "vectorizer" not in flag]
    made = []
    for path in sorted([*folder.glob("src/*.c"), *mains]):
        relative = str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name
        made.append(objects / f"{path.stem}.o")
        if made[-1].exists():
            continue
        given = (*kernel_flags, *flags_of[relative]) if relative in flags_of else FLAGS
        command = [*compiler.command, *given, "-fPIC", *flags, *include(folder), "-c", str(path), "-o", str(made[-1])]
        subprocess.run(command, check=True, cwd=folder)
    return made
