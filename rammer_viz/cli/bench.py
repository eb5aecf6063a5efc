"""Implement `rammer bench`: policies, and ONNX Runtime, side by side."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import click

from rammer import config
from rammer.cli.console import json_option, out, print_json
from rammer.cli.options import SECONDS, compile_options, is_saved, model_argument, open_program, refuse_options
from rammer.errors import InputError
from rammer.runtime import measure
from rammer.runtime.program import Program
from rammer.scheduler.policy_options import split_policies
from rammer_viz import tables

POLICIES = ("sequential", "wavefront")  # that `bench` compares the default one with
PEERS = ("onnxruntime",)


@click.command()
@model_argument
@click.option("--policies", help=f"Policies to compare.  [default: RAMMER_POLICY or auto, {', '.join(POLICIES)}]")
@click.option("--peer", type=click.Choice(PEERS), help="Time this system in turns with the policies.")
@click.option(
    "--seconds", type=SECONDS, default=2.0, show_default=True, help="Time to measure runs, and again for their parts."
)
@click.option("--operators", type=click.IntRange(min=0), default=15, show_default=True, help="Rows of operators.")
@json_option
@compile_options
@click.pass_obj
def bench(
    verbose: int,
    /,
    model: str | dict[str, str],
    policies: str | None,
    peer: str | None,
    seconds: float,
    operators: int,
    as_json: bool,
    policy: str | None,
    **options: Any,
) -> None:
    """Time MODEL under several policies, in turns.

    Lists the operators of the first one that take most time. Policies with equal plans are timed once. A compiled
    program is timed under the policy it was compiled with.
    """
    usual = ",".join(dict.fromkeys((config.get("RAMMER_POLICY"), *POLICIES)))
    names = [policy] if policy else split_policies(usual if policies is None else policies)
    if not names:
        raise InputError(f"--policies {policies!r} names no policy", hint=f"for example --policies {usual}")
    with ExitStack() as stack:
        programs: dict[str, Program] = {}
        if is_saved(model):
            refuse_options(model, policies=policies, peer=peer)
            program = stack.enter_context(open_program(model, policy=policy, **options))
            programs[program.report().policy] = program
        else:
            for name in names:
                programs[name] = stack.enter_context(open_program(model, policy=name, **options))
        first = {name: next(n for n, p in programs.items() if _alike(p, program)) for name, program in programs.items()}
        distinct = {name: programs[name] for name in first.values()}
        runs: dict[str, Callable[[], object]] = {name: measure.repeated(p) for name, p in distinct.items()}
        if peer:
            runs[peer] = _onnxruntime(model, next(iter(programs.values())))
        samples = measure.interleaved(runs, seconds)
        measure.profile(distinct, seconds)
        samples |= {name: samples[other] for name, other in first.items()}
        if as_json:
            same = {name: {"same_plan_as": other} for name, other in first.items() if other != name}
            reports = {name: {"report": program.report().to_json()} for name, program in programs.items()}
            print_json({n: {**s.summary(), **reports.get(n, {}), **same.get(n, {})} for n, s in samples.items()})
            return
        out.print(tables.policy_table(programs, samples, first))
        out.print(tables.operator_table(next(iter(programs.values())), operators))


def _alike(one: Program, other: Program) -> bool:
    """Return whether two programs of one model are the same: their plans and their code."""
    return one is other or (one.plan.programs == other.plan.programs and one.image.files == other.image.files)


def _onnxruntime(model: str | dict[str, str], program: Program) -> Callable[[], object]:
    """Return a call that runs the model by ONNX Runtime, on the program's inputs and as many threads."""
    if isinstance(model, dict):
        raise InputError("--peer runs one model", hint="leave it out")
    if not find_spec("onnxruntime"):
        raise InputError("--peer onnxruntime: it is not installed", hint="pip install onnxruntime")
    ort = import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = program.report().num_veus
    options.add_session_config_entry("session.force_spinning_stop", "1")  # else its threads disturb other runs
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = measure.random_inputs(program.inputs, 0)
    return lambda: session.run(None, inputs)
