"""Implement `rammer doctor`: list what is available on this machine."""

from __future__ import annotations

import shutil
from importlib.util import find_spec

import click
from rich.markup import escape
from rich.table import Table

from rammer import config
from rammer.cli.console import out
from rammer.compiler.progress import progress_bar
from rammer.errors import RammerError
from rammer.plugins import PluginRegistry

# What runs exported projects of other systems: programs, and a package of Python (docs/targets.md).
EMULATORS = ("qemu-aarch64", "qemu-riscv64", "wine", "wasmtime", "node", "chromium", "qemu-system-arm")


@click.command()
@click.option("--calibrate", is_flag=True, help="Measure what this machine can do, for better estimates: some seconds.")
def doctor(calibrate: bool) -> None:
    """List vDevices, policies and plugins, with the reason why one is unavailable."""
    registry = PluginRegistry()
    if calibrate:
        _calibrate(registry)
    table = Table("vDevice", "plugin", "state", "what to know", title="vDevices")
    for info in registry.devices():
        state = "[green]ready[/]" if info.available else "[yellow]unavailable[/]"
        known = [info.summary if info.available else "", info.reason, info.hint]
        table.add_row(info.name, info.plugin, state, escape("\n".join(k for k in known if k)))
    out.print(table)
    out.print(_policies(registry))
    for fault in registry.faults:
        out.print(f"[red]plugin {escape(fault.plugin)}[/] of {escape(fault.distribution)}: {escape(fault.reason)}")
    from rammer.vdevice import toolchain

    out.print(f"C compiler: {escape(toolchain.describe())}", highlight=False)
    here = [tool for tool in EMULATORS if shutil.which(tool) or find_spec(tool)]
    lacking = sorted({*EMULATORS} - {*here})
    exports = f"{', '.join(here) or 'nothing'}; not installed: {', '.join(lacking) or 'nothing'}"
    out.print(f"exports for other systems run here by: {exports}", highlight=False)
    try:
        out.print(f"cache: {escape(config.describe_cache())}", highlight=False)
    except RammerError as error:
        out.print(f"[red]cache:[/] {escape(str(error))}", highlight=False)
    set_flags = {name: value for name in config.FLAGS if (value := config.get(name)) != config.FLAGS[name].default}
    out.print("flags set: " + escape(", ".join(f"{n}={v}" for n, v in set_flags.items()) or "none"), highlight=False)


def _calibrate(registry: PluginRegistry) -> None:
    """Measure all vDevices that support it, and print the results next to the defaults."""
    for name, (_, entry) in registry.vdevices().items():
        if entry.calibrate is None or not entry.probe().ok:
            continue
        with progress_bar() as show:
            found = entry.calibrate(show)
        table = Table("number", "usual", "measured", title=f"{name}: rates in 1e9 per second, times in µs")
        for number, usual, measured in found:
            table.add_row(number, f"{usual:g}", f"{measured:g}")
        out.print(table)


def _policies(registry: PluginRegistry) -> Table:
    """Return a table of every policy with its options."""
    table = Table("policy", "option", "what it means", title="policies")
    for name, options in sorted(registry.policy_options().items()):
        table.add_row(name)
        for option in options:
            for value, meaning in option.values.items():
                default = " (default)" if value == option.default else ""
                table.add_row("", f"{option.name}={escape(value)}{default}", escape(meaning))
    return table
