"""Assemble the command line: the group of all commands, with those of plugins."""

from __future__ import annotations

import logging
import warnings
from importlib.metadata import entry_points
from pathlib import Path

import click
from click.shell_completion import get_completion_class

import rammer
from rammer import config, files
from rammer.cli.cache import cache
from rammer.cli.console import CommandGroup, out
from rammer.cli.doctor import doctor
from rammer.cli.export import export
from rammer.cli.models import check_command, compile_command, run
from rammer.cli.new_plugin import new_plugin
from rammer.cli.options import SECONDS
from rammer.compiler.progress import progress_bar
from rammer_viz import demo
from rammer_viz.cli.bench import bench
from rammer_viz.cli.explain import explain_command
from rammer_viz.cli.show import show

COMMANDS = "rammer.commands"  # the entry-point group of plugins that add commands


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-v", "--verbose", count=True, help="Say more: -v phases and notes, -vv tracebacks.")
@click.option("--plugin", "plugins", multiple=True, metavar="FILE", help="Also load this Python file as a plugin.")
@click.version_option(rammer.__version__)
@click.pass_context
def main(context: click.Context, verbose: int, plugins: tuple[str, ...]) -> None:
    """Compile neural networks into static plans of tile-sized tasks, run them, and look at the plans."""
    context.obj = verbose
    if plugins:
        given = (*config.names("RAMMER_PLUGINS"), *(str(Path(file).absolute()) for file in plugins))
        context.with_resource(config.override(RAMMER_PLUGINS=",".join(given)))
    form = "%(name)s" if verbose else "warning"  # nothing below is shown
    logging.basicConfig(level=logging.WARNING - 10 * min(verbose, 2), format=f"{form}: %(message)s")


@main.command("demo")
@click.option("--html", default="rammer-demo.html", show_default=True, help="Where to write the timeline.")
@click.option("--seconds", type=SECONDS, default=2.0, show_default=True, help="Time to measure, per network.")
def demo_command(html: str, seconds: float) -> None:
    """Compile, run and check real networks.

    Compares sequential with wavefront scheduling.
    """
    files.check_new(html)
    with progress_bar() as show_progress:
        demo.run(out, Path(html), seconds, show_progress)


@main.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print a completion script for bash, zsh or fish.

    Use it as eval "$(rammer completion bash)", eval "$(rammer completion zsh)", or rammer completion fish | source.
    """
    complete = get_completion_class(shell)
    assert complete
    click.echo(complete(main, {}, "rammer", "_RAMMER_COMPLETE").source())


for command in (compile_command, export, run, check_command, bench, show, explain_command, doctor, cache, new_plugin):
    main.add_command(command)
for found in entry_points(group=COMMANDS):
    try:
        main.add_command(found.load(), found.name)
    except Exception as error:  # an error of a plugin must not disable other commands
        warnings.warn(f"command {found.name!r} of plugin {found.value} is not used: {error!r}", stacklevel=1)
