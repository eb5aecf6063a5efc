"""Implement `rammer explain`: what bounds a program, and what would pay."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import click

import rammer_viz as viz
from rammer import files
from rammer.cli.console import json_option, print_json, wrote
from rammer.cli.options import compile_options, how_to_compile, is_saved, model_argument, open_program, paths_of
from rammer.compiler import Compilation
from rammer.compiler.progress import progress_bar
from rammer.scheduler.policy_options import split_policies
from rammer_viz.shared import MEASURED


@click.command("explain")
@model_argument
@click.option("--html", help="Write the explanation and the timeline as one self-contained page.")
@click.option("--policies", default="all", show_default=True, help="Policies to compare with: A,B, or all, or none.")
@click.option("--measured", is_flag=True, help="Build and run the program, and show measured times, too.")
@json_option
@compile_options
@click.pass_obj
def explain_command(
    verbose: int,
    /,
    model: str | dict[str, str],
    html: str | None,
    policies: str,
    measured: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Explain the plan of MODEL: what bounds it, what would pay.

    Shows its critical path, and the operators that would gain most.

    Nothing is built, unless times are measured. A compiled program keeps no candidates, and is not planned
    again by other policies.
    """
    if html:
        files.check_new(html, sources=paths_of(model))
    others: dict[str, float | str] = {}
    with ExitStack() as stack:
        if is_saved(model):
            program = stack.enter_context(open_program(model, **options))
            plan, timeline = program.outline()
        else:
            show = stack.enter_context(progress_bar())
            how = how_to_compile(options).but(together=None)
            compilation = stack.enter_context(Compilation.of(model, how, progress=show))
            plan, timeline = compilation.proven.plan, compilation.proven.timeline
            names = {"all": [*compilation.registry.policies()], "none": []}.get(policies, split_policies(policies))
            for name in names:
                compilation.registry.policy(name)  # one that does not exist is a mistake, not an answer
            others = compilation.estimates(name for name in names if name != compilation.policy.name)
            if measured:
                program = stack.enter_context(compilation.program())
                plan, timeline = program.outline()
        run = program.measured_timeline() if measured else None
    found = viz.explain(timeline, plan, others, run.total_us if run else 0.0)
    if as_json:
        print_json(found.to_json())
    else:
        click.echo(str(found))
    if html:
        beside = {MEASURED: (run, plan)} if run else {}
        page = viz.html(timeline, plan, others=beside, why=found._repr_html_())
        files.write(html, page, sources=paths_of(model))
        wrote(html)
