"""Implement `rammer cache`: show and clear the cache, and exchange measured times between caches."""

from __future__ import annotations

import click

from rammer import files
from rammer.cli.console import json_option, print_json
from rammer.errors import counted
from rammer.vdevice import profiles, toolchain


@click.group(invoke_without_command=True)
@click.option("--clear", is_flag=True, help="Delete compiled kernels and measured times.")
@json_option
@click.pass_context
def cache(context: click.Context, clear: bool, as_json: bool) -> None:
    """Show, clear or exchange compiled kernels and measured times."""
    if clear:
        toolchain.clear_cache()
    if context.invoked_subcommand is None:
        found = toolchain.cache_summary()
        kernels, objects = (counted(found[what], what[:-1]) for what in ("kernels", "objects"))
        text = f"{found['folder']}: {kernels} in {objects}, {found['bytes'] / 1e6:.1f} MB in all"
        print_json(found) if as_json else click.echo(text)


@cache.command("export")
@click.argument("file")
def export_command(file: str) -> None:
    """Write all measured times into FILE, each with its machine and compiler."""
    files.check_new(file)
    click.echo(f"{file}: {counted(profiles.export_times(file), 'measured time')}")


@cache.command("import")
@click.argument("exported", nargs=-1, required=True)
def import_command(exported: tuple[str, ...]) -> None:
    """Merge files that `rammer cache export` wrote: of two times for the same, the newer one stays.

    Times of other machines are stored too, and used only on those. Machine code is not exchanged.
    """
    for file in exported:
        known, new = profiles.import_times(file)
        click.echo(f"{file}: {counted(known, 'measured time')}, {new} of them new or younger")
