"""Implement `rammer cache`: show and clear the cache, and exchange measured times between caches."""

from __future__ import annotations

import click

from rammer import files
from rammer.vdevice import profiles, toolchain


@click.group(invoke_without_command=True)
@click.option("--clear", is_flag=True, help="Delete compiled kernels and measured times.")
@click.pass_context
def cache(context: click.Context, clear: bool) -> None:
    """Show or clear the cache of compiled kernels and measured times, or exchange measured times with another cache."""
    if clear:
        toolchain.clear_cache()
    if context.invoked_subcommand is None:
        click.echo(toolchain.cache_summary())


@cache.command("export")
@click.argument("file")
def export_command(file: str) -> None:
    """Write all measured times into FILE, each with its machine and compiler."""
    files.check_new(file)
    click.echo(f"{file}: {profiles.export_times(file)} measured times")


@cache.command("import")
@click.argument("exported", nargs=-1, required=True)
def import_command(exported: tuple[str, ...]) -> None:
    """Merge files that `rammer cache export` wrote: of two times for the same, the newer one stays.

    Times of other machines are stored too, and used only on those. Machine code is not exchanged.
    """
    for file in exported:
        known, new = profiles.import_times(file)
        click.echo(f"{file}: {known} measured times, {new} of them new or younger")
