"""Implement `rammer doctor`: list what is available on this machine."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from rammer import config
from rammer.cli.console import json_option, out, print_json
from rammer.cli.syntax import in_options
from rammer.compiler.progress import progress_bar
from rammer.errors import RammerError
from rammer.plugins import PluginRegistry

# What runs exported projects of other systems: programs, and a package of Python (docs/targets.md).
EMULATORS = ("qemu-aarch64", "qemu-riscv64", "wine", "wasmtime", "node", "chromium", "qemu-system-arm")


@click.command()
@click.option("--calibrate", is_flag=True, help="Measure what this machine can do, for better estimates: some seconds.")
@json_option
def doctor(calibrate: bool, as_json: bool) -> None:
    """List devices, faults, compiler, caches, flags and policies.

    Says why a device or a plugin cannot be used.
    """
    registry = PluginRegistry()
    if calibrate:
        _calibrate(registry, quiet=as_json)
    found = _found(registry)
    if as_json:
        listed = registry.policy_options().items()
        policies = {name: {option.name: option.values for option in options} for name, options in listed}
        print_json({**found, "policies": policies})
        return
    table = Table("vDevice", "plugin", "state", "what to know", title="vDevices")
    for info in found.pop("devices"):
        state = "[green]ready[/]" if info["available"] else "[red]unavailable[/]"
        state = "[yellow]emulator[/]" if info["emulated"] else state
        known = [info["summary"] if info["available"] or info["emulated"] else "", info["reason"], info["hint"]]
        table.add_row(info["name"], info["plugin"], state, escape(in_options("\n".join(k for k in known if k))))
    out.print(table)
    for fault in found.pop("faults"):
        out.print(f"[red]{escape(fault['plugin'])}[/] of {escape(fault['distribution'])}: {escape(fault['reason'])}")
    for what, value in found.items():
        text = ", ".join(f"{n}={v}" for n, v in value.items()) or "none" if isinstance(value, dict) else value
        out.print(f"{what}: {escape(str(text))}", highlight=False, soft_wrap=True)
    out.print(_policies(registry))


def _found(registry: PluginRegistry) -> dict[str, Any]:
    """Return what is here, by the names that the command prints."""
    from rammer.vdevice import toolchain

    try:
        cache = config.describe_cache()
    except RammerError as error:
        cache = f"error: {error}"
    return {
        "devices": [asdict(info) for info in registry.devices()],
        "faults": [asdict(fault) for fault in registry.faults],
        "C compiler": toolchain.describe(),
        "cache": cache,
        "flags set": {n: v for n in config.FLAGS if (v := config.get(n)) != config.FLAGS[n].default},
        "exports for other systems run here by": {
            tool: "installed" if shutil.which(tool) or find_spec(tool) else "missing" for tool in EMULATORS
        },
    }


def _calibrate(registry: PluginRegistry, quiet: bool) -> None:
    """Measure all vDevices that support it, and print the results next to the defaults, unless `quiet`."""
    available = {info.name for info in registry.devices() if info.available}
    for name, (_, entry) in registry.vdevices().items():
        if entry.calibrate is None or name not in available:
            continue
        with progress_bar() as show:
            found = entry.calibrate(show)
        if quiet:
            continue
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
