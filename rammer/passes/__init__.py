"""Passes: each one takes a graph and returns one of the same meaning. `optimize` runs them all."""

from __future__ import annotations

from collections.abc import Callable

from rammer.ir.device import SyncModel, VDeviceSpec
from rammer.ir.graph import Graph
from rammer.passes.clean.eliminate_common import eliminate_common
from rammer.passes.clean.eliminate_dead import eliminate_dead
from rammer.passes.clean.fold_constants import fold_constants
from rammer.passes.clean.fold_norms import fold_norms
from rammer.passes.clean.mark_static import mark_static
from rammer.passes.clean.simplify import simplify
from rammer.passes.fusion.regions import fuse
from rammer.passes.layout.channels import choose_layouts
from rammer.passes.layout.moves import merge_slices, split_activations
from rammer.passes.layout.place import place
from rammer.passes.recurrent.gates import gather_gates
from rammer.passes.recurrent.projections import join_projections
from rammer.passes.recurrent.split_products import split_products
from rammer.passes.recurrent.stack_rows import stack_rows

Watch = Callable[[str, Graph], None]  # (pass, graph after it)


def silent(name: str, graph: Graph) -> None:
    """The watcher that shows nothing."""


def passes(spec: VDeviceSpec) -> tuple[Callable[[Graph], Graph], ...]:
    """The passes for a vDevice, in order."""

    def layouts(graph: Graph) -> Graph:
        return choose_layouts(graph, spec)

    def stack(graph: Graph) -> Graph:
        # where vEUs are many, layers that run side by side are worth more than large products
        return stack_rows(graph, across_waves=spec.sync is not SyncModel.GLOBAL and spec.max_threads == 1)

    def project(graph: Graph) -> Graph:
        # many threads share the work of a product better than that of a cell
        alone = spec.max_threads == 1 and spec.sync is not SyncModel.GLOBAL
        return join_projections(graph) if alone else graph

    return (
        eliminate_dead,
        fold_constants,
        simplify,
        merge_slices,
        fold_norms,
        split_activations,
        eliminate_common,
        split_products,
        gather_gates,
        stack,
        simplify,
        eliminate_common,
        project,
        fuse,
        layouts,
        place,
        mark_static,
    )


def optimize(graph: Graph, spec: VDeviceSpec, *, watch: Watch = silent) -> Graph:
    """Fold, clean, fuse, choose layouts and place tensors. The result has the same inputs, outputs and meaning."""
    for run in passes(spec):
        graph = run(graph)
        watch(getattr(run, "__name__", "pass"), graph)
    return graph
