"""Implement `rammer new-plugin`: make a package of a device, kernels or a policy. Known as: scaffolding."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

import click

from rammer.about import COMPILER, TESTING
from rammer.errors import InputError
from rammer.files import new_folder
from rammer.plugins import PluginRegistry

KINDS = {"device": "vDevice", "c-device": "vDevice", "kernels": "kernels", "policy": "policy"}  # in the description
NAME = re.compile("[a-z](_?[a-z0-9]){0,39}")  # a part of a module's name, and of a distribution's


@click.command("new-plugin")
@click.argument("name")
@click.option("--device", "kind", flag_value="device", default=True, help="A device that runs in NumPy.  [default]")
@click.option("--c-device", "kind", flag_value="c-device", help="A device that compiles C and saves programs.")
@click.option("--kernels", "kind", flag_value="kernels", help="A kernel in C for CPUs.")
@click.option("--policy", "kind", flag_value="policy", help="A scheduling policy with an option.")
def new_plugin(name: str, kind: str) -> None:
    """Make the package of a plugin that works, with tests.

    Writes rammer-NAME into this folder: a device, kernels or a policy.

    NAME is what users write: --target NAME, --policy NAME. docs/plugin-author.md says how to go on.
    """
    _check_name(name)
    folder = Path(f"rammer-{name.replace('_', '-')}")
    made = contents(name, kind)
    new_folder(folder, made, hint="choose another name")
    click.echo(f"wrote {', '.join(str(folder / file) for file in made)}")
    click.echo(f"next: cd {folder}; pip install -e '.[test]'; pytest")


def contents(name: str, kind: str) -> dict[str, str]:
    """Return the texts of a package, by file."""
    values = {"name": name, "Name": name.title().replace("_", ""), "dashed": name.replace("_", "-")}
    values |= {"kind": KINDS[kind], "compiler": COMPILER, "testing": TESTING}
    module, test = f"rammer_{name}.py", f"test_{name}.py"
    forms = {"pyproject.toml": "pyproject.toml", module: f"{kind}.py", test: f"{kind.removeprefix('c-')}_test.py"}
    templates = files("rammer_testing").joinpath("templates")
    return {
        file: Template(templates.joinpath(f"{form}.in").read_text(encoding="utf-8")).substitute(values)
        for file, form in forms.items()
    }


def _check_name(name: str) -> None:
    """Raise InputError for a name that is not valid, or that a policy, a vDevice or a module has."""
    if not NAME.fullmatch(name):
        hint = "lower-case letters, digits and single underscores, for example my_device; at most 40"
        raise InputError(f"{name!r} cannot be the name of a plugin", hint=hint)
    registry = PluginRegistry()
    if name in {*registry.vdevices(), *registry.policies()} or find_spec(f"rammer_{name}"):
        raise InputError(f"{name!r} is a vDevice, a policy or a module rammer_{name} already", hint="choose another")
