"""Implement `rammer export`: write a model as a C project that runs without Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from rammer.cli.console import out
from rammer.cli.options import compile_options, compiled, model_argument, pairs, together_option


@click.command("export")
@model_argument
@click.option("-o", "--output", required=True, help="The folder to write: a new or an empty one.")
@click.option("--name", help="The model's name in C.  [default: that of its file]")
@click.option("--state", multiple=True, callback=pairs, help="An output that is an input of the next run: OUT=IN.")
@together_option
@compile_options
def export(model: str | dict[str, str], output: str, name: str | None, state: dict[str, str], **options: Any) -> None:
    """Export MODEL (ONNX) as a C project that runs without Python.

    It has sources, weights, a header, CMake files and a self-check.

    --target cuda and rocm export for a GPU. --arch takes several, A,B: the library then chooses the best that the CPU
    or GPU runs. Several models, NAME=MODEL, become one model with ports NAME.PORT.
    """
    with compiled(model, state=state, **options) as ((first, *others), _):
        first.export(output, name=name, others=others)
        files = [path for path in Path(output).rglob("*") if path.is_file()]
        nbytes = sum(path.stat().st_size for path in files)
    out.print(f"wrote {escape(output)}: {len(files)} files, {nbytes / 1e6:.1f} MB", highlight=False)
    out.print(f"build and check it: cmake -B build {escape(output)} && cmake --build build && ctest --test-dir build")
