"""Compile several models into one program: a plan of all, and plans of sets of them that are called at other rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rammer.compiler.compilation import Compilation
from rammer.compiler.models import Model, read_each, refuse_names
from rammer.compiler.options import CompileOptions
from rammer.errors import InputError, did_you_mean
from rammer.frontend.merge import merge, model_of
from rammer.plugins import PluginRegistry
from rammer.runtime.joint import JointProgram, PartImage
from rammer.runtime.state import checked_pairs
from rammer.vdevice.base import Progress


def compile_jointly(
    models: Mapping[str, Model], options: CompileOptions, registry: PluginRegistry, progress: Progress
) -> JointProgram:
    """Compile models by name: all in one plan, and each set of `options.together` in another. Raises a RammerError."""
    sets = _sets(models, options.together)
    refuse_names(options.input_names, options.output_names)
    graphs, files = read_each(models, options.shapes, options.dims, options.constants, options.example)
    links = dict(options.links or {})
    whole = merge(graphs, links)
    types = [{t: whole.types[t] for t in names} for names in (whole.inputs, whole.outputs)]
    state = checked_pairs(options.state, *types)
    _, device = options.open(registry)
    parts = []
    try:
        if options.budget_s > 0:
            device.begin()
        for names in sets:
            graph = merge({name: graphs[name] for name in names}, _inside(links, names))
            own = options.but(state=_inside(state, names))
            with Compilation(graph, device, options=own, registry=registry, progress=progress) as compilation:
                parts.append(PartImage(names, compilation.built.image, compilation.built.report))
        return JointProgram(parts, device, sources=files)
    except BaseException:
        device.close()
        raise


def _sets(models: Mapping[str, Model], together: Sequence[Sequence[str]] | None) -> list[tuple[str, ...]]:
    """Return the sets of models to plan, each in the order of `models`; all of them first. Raises InputError."""
    given = [(name,) for name in models] if together is None else together
    sets = [tuple(models)]
    for names in given:
        if isinstance(names, str):
            raise InputError(f"together= has the string {names!r} instead of a set of models", hint=f"({names!r},)")
        if unknown := [name for name in names if name not in models]:
            hint = did_you_mean(str(unknown[0]), models) or f"models are {', '.join(models)}"
            raise InputError(f"together= names {unknown[0]!r}, which is not a model", hint=hint)
        if not names:
            raise InputError("together= has an empty set of models", hint="leave it out")
        sets.append(tuple(name for name in models if name in names))
    return list(dict.fromkeys(sets))


def _inside(pairs: Mapping[str, str], models: Sequence[str]) -> dict[str, str]:
    """Return the pairs of ports whose models are both among these."""
    return {a: b for a, b in pairs.items() if model_of(a) in models and model_of(b) in models}
