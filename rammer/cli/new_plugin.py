"""Offer `rammer new-plugin`, a tool of the package `rammer-testing`, or say how to install it."""

from __future__ import annotations

import click

from rammer.errors import RammerError
from rammer.testing import tools

try:
    from rammer_testing.new_plugin import new_plugin as new_plugin
except ModuleNotFoundError:

    @click.command("new-plugin", add_help_option=False, context_settings={"ignore_unknown_options": True})
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def new_plugin(arguments: tuple[str, ...]) -> None:
        """Make the package of a plugin, with tests: needs rammer-testing."""
        raise RammerError(tools.MISSING, hint=tools.HINT)
