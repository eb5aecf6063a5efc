"""Define the commands `rammer convert` and `rammer kernels` for imported kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from rammer import files
from rammer.cli.console import CommandGroup, err, out
from rammer.errors import InputError


def _dims(_: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, int, int] | None:
    """Parse a grid or block: 64, 16x16 or 4x4x2."""
    try:
        numbers = [int(n) for n in value.split("x")] if value else []
    except ValueError:
        numbers = [0]
    if len(numbers) > 3 or any(n < 1 for n in numbers):
        raise click.BadParameter("one to three numbers, as 16x16")
    return (*numbers, 1, 1)[:3] if numbers else None  # type: ignore[return-value]


@click.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False))
@click.option("-o", "--output", required=True, help="The file to write: .json (a record), .cu or .hip (text).")
@click.option("--threads", default=256, show_default=True, help="Threads of a block, if it has one dimension.")
@click.option("--block", callback=_dims, help="Shape of a block: 16x16.")
@click.option("--grid", callback=_dims, help="Shape of the grid: 8x4.  [default: 1]")
@click.option("--shared", default=0, help="Bytes of dynamic shared memory.")
def convert(
    source: str,
    output: str,
    threads: int,
    block: tuple[int, int, int] | None,
    grid: tuple[int, int, int] | None,
    shared: int,
) -> None:
    """Convert a CUDA kernel of yours, and check it.

    SOURCE is CUDA text (.cu) or a record (.json).

    A record becomes the same in canonical form. Either becomes the text of an rTask, in CUDA or (.hip) HIP. Nothing
    is executed; what has no counterpart is refused with its line.
    """
    from rammer_legacy_kernels.convert import Launch, convert_source
    from rammer_legacy_kernels.record import read_record, read_text, record_files, to_json
    from rammer_legacy_kernels.source import read_source

    language = {".cu": "cuda", ".hip": "hip"}.get(Path(output).suffix)
    record = read_record(source) if Path(source).suffix == ".json" else None
    sources = record_files(source) if record is not None else (Path(source),)
    files.check_new(output, sources=sources)
    if record is not None and Path(output).suffix == ".json":
        files.write(output, json.dumps(to_json(record), indent=1) + "\n", sources=sources)
        out.print(f"{escape(record.name)}: key {record.key[:16]}; wrote {escape(output)}", highlight=False)
        return
    if language is None:
        raise InputError(
            f"{output}: a text is written as .cu or .hip", hint="a record is made by hand: docs/kernels.md"
        )
    if record is not None:
        made = convert_source(record.source, record.launch, language, syncs=record.syncs)
    else:
        launch = Launch(grid or (1, 1, 1), block or (threads, 1, 1), shared)
        made = convert_source(read_source(read_text(Path(source))), launch, language)
    files.write(output, made.text, sources=sources)
    syncs = "an unknown number of" if made.num_block_syncs is None else made.num_block_syncs
    line = f"{made.symbol}: {made.num_threads} threads, {made.scratch_bytes} bytes of scratch, {syncs} block syncs"
    out.print(f"{escape(line)}; wrote {escape(output)}", highlight=False)


@click.group(cls=CommandGroup)
def kernels() -> None:
    """Manage imported CUDA kernels.

    They come from records, and are candidates for the operators that they compute, on CUDA and ROCm.
    """


@kernels.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--verify", "now", is_flag=True, help="Execute them under the emulator at once; else `verify` does.")
def import_command(files: tuple[str, ...], now: bool) -> None:
    """Check records (.json) and keep them. A kernel is executed only by --verify, and used only if verified."""
    from rammer_legacy_kernels import store
    from rammer_legacy_kernels.nnfusion import read_any

    for records, refused in map(read_any, files):
        for error in refused:
            err.print(f"[yellow]refused:[/] {escape('; '.join([*error.__notes__, error.what]))}", highlight=False)
        for record in records:
            if now:
                _verify(record)
            else:
                store.add(record)
                line = f"{record.name}: kept; `rammer kernels verify {record.name}` executes and admits it"
                out.print(escape(line), highlight=False)


@kernels.command("verify")
@click.argument("names", nargs=-1, required=True)
def verify_command(names: tuple[str, ...]) -> None:
    """Execute imported kernels under the emulator, each in a process of its own, and admit those that are right."""
    from rammer_legacy_kernels import store

    for name in names:
        _verify(store.find(name).record)


def _verify(record: Any) -> None:
    from rammer_legacy_kernels import store
    from rammer_legacy_kernels.verify import verify

    found = verify(record)
    store.add(record, found)
    line = f"{record.name}: verified: {found.blocks} blocks, {found.syncs} block syncs, error {found.max_error:.2g}"
    out.print(escape(line), highlight=False)


@kernels.command("list")
def list_command() -> None:
    """List imported kernels."""
    from rammer_legacy_kernels import store

    table = Table("name", "operator", "inputs", "grid", "block", "syncs", "state")
    for stored in store.stored_kernels():
        r = stored.record
        grid, block = ("×".join(map(str, d)) for d in (r.launch.grid, r.launch.block))
        state = f"verified, error {stored.max_error:.2g}" if stored.verified else "not verified: not used"
        syncs = "?" if r.syncs is None else str(r.syncs)
        table.add_row(escape(r.name), r.operation.kind, ", ".join(map(str, r.inputs)), grid, block, syncs, state)
    out.print(table)
    out.print(escape(f"folder: {store.store_folder()}"), highlight=False)


@kernels.command("remove")
@click.argument("names", nargs=-1, required=True)
def remove_command(names: tuple[str, ...]) -> None:
    """Forget imported kernels."""
    from rammer_legacy_kernels import store

    for name in names:
        store.remove(name)
