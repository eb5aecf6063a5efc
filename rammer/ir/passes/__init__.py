"""Passes: each one takes a graph and returns one of the same meaning. `optimize` runs them all."""

from __future__ import annotations

from collections.abc import Callable

from rammer.ir.device import SyncModel, VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.passes.eliminate_common import eliminate_common
from rammer.ir.passes.eliminate_dead import eliminate_dead
from rammer.ir.passes.fold_constants import fold_constants
from rammer.ir.passes.fold_norms import fold_norms
from rammer.ir.passes.fuse import fuse
from rammer.ir.passes.gates import gather_gates
from rammer.ir.passes.integer_products import integer_products
from rammer.ir.passes.layout import choose_layouts
from rammer.ir.passes.mark_static import mark_static
from rammer.ir.passes.moves import merge_slices, split_activations
from rammer.ir.passes.narrow_products import narrow_products
from rammer.ir.passes.place import place
from rammer.ir.passes.projections import join_projections
from rammer.ir.passes.simplify import simplify
from rammer.ir.passes.split_products import split_products
from rammer.ir.passes.stack_rows import stack_rows

Watch = Callable[[str, Graph], None]  # (pass, graph after it)


def silent(name: str, graph: Graph) -> None:
    """The watcher that shows nothing."""


def passes(spec: VDeviceSpec) -> tuple[Callable[[Graph], Graph], ...]:
    """The passes for a vDevice, in order."""

    def layouts(graph: Graph) -> Graph:
        return choose_layouts(graph, spec)

    def integers(graph: Graph) -> Graph:
        return integer_products(graph, spec)

    def narrow(graph: Graph) -> Graph:
        return narrow_products(graph, spec)

    def stack(graph: Graph) -> Graph:
        # where vEUs are many, layers that run side by side are worth more than large products
        return stack_rows(graph, across_waves=spec.sync is not SyncModel.GLOBAL and spec.max_threads == 1)

    def project(graph: Graph) -> Graph:
        # many threads share the work of a product better than that of a cell
        alone = spec.max_threads == 1 and spec.sync is not SyncModel.GLOBAL
        return join_projections(graph) if alone else graph

    return (
        eliminate_dead,
        integers,
        fold_constants,
        simplify,
        merge_slices,
        fold_norms,
        split_activations,
        eliminate_common,
        narrow,
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
