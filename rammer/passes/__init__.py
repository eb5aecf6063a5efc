"""Rewrite graphs: each pass takes a graph and returns one of the same meaning. `optimize` runs all passes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from rammer.ir.device import Execution, VDeviceSpec
from rammer.ir.graph import Graph
from rammer.passes.clean.convolve_first import convolve_first
from rammer.passes.clean.eliminate_common import eliminate_common
from rammer.passes.clean.eliminate_dead import eliminate_dead
from rammer.passes.clean.fold_constants import fold_constants
from rammer.passes.clean.fold_norms import fold_norms
from rammer.passes.clean.large_filters import transform_large_filters
from rammer.passes.clean.mark_static import mark_static
from rammer.passes.clean.merge_transposes import merge_transposes
from rammer.passes.clean.move_first import move_first
from rammer.passes.clean.products import simplify_products
from rammer.passes.clean.simplify import simplify
from rammer.passes.clean.split_columns import split_columns
from rammer.passes.fusion.chains import fuse_chains
from rammer.passes.fusion.norms import fuse_norms
from rammer.passes.fusion.regions import fuse
from rammer.passes.fusion.rows import fuse_rows
from rammer.passes.layout.channels import choose_layouts
from rammer.passes.layout.channels_last import keep_channels_last
from rammer.passes.layout.columns_first import columns_first
from rammer.passes.layout.moves import merge_slices, split_activations
from rammer.passes.layout.place import place
from rammer.passes.layout.shuffles import read_shuffled
from rammer.passes.quantized.block_weights import block_weights
from rammer.passes.quantized.duplicate_dequantize import duplicate_dequantize
from rammer.passes.quantized.integer_products import integer_products
from rammer.passes.quantized.narrow_products import narrow_products
from rammer.passes.quantized.packed_tables import packed_tables
from rammer.passes.quantized.quantize_first import quantize_first
from rammer.passes.quantized.requantize import requantize
from rammer.passes.quantized.weights_as_bytes import weights_as_bytes
from rammer.passes.quantized.wide_weights import wide_weights
from rammer.passes.quantized.widen_halves import widen_halves
from rammer.passes.recurrent.cut_rows import cut_rows
from rammer.passes.recurrent.decompose_cells import decompose_cells
from rammer.passes.recurrent.decompose_resets import decompose_resets
from rammer.passes.recurrent.gates import gather_gates, join_sums
from rammer.passes.recurrent.projections import join_projections
from rammer.passes.recurrent.split_products import split_products
from rammer.passes.recurrent.stack_rows import stack_rows
from rammer.passes.sort_rows import sort_rows

Watch = Callable[[str, Graph], None]  # (pass, graph after it)


def ignore_pass(name: str, graph: Graph) -> None:
    """Ignore a pass and its graph. The default of `watch`."""


Pass = Callable[[Graph], Graph]


def ignore_note(note: str) -> None:
    """Ignore a note. The default of `tell`."""


def passes(spec: VDeviceSpec, per_image: bool = False, tell: Callable[[str], None] = ignore_note) -> tuple[Pass, ...]:
    """Return the passes for a vDevice, in order."""
    core, keeps = spec.is_core, spec.keeps_weights

    def bound(run: Callable[..., Graph], *more: object, **named: object) -> Pass:
        """Bind more arguments of a pass than its graph. Known as: partial application."""
        return wraps(run)(lambda graph: run(graph, *more, **named))

    def widened(graph: Graph) -> Graph:
        for note in wide_weights(graph):
            tell(note)
        return graph

    def only(where: bool, *runs: Pass) -> tuple[Pass, ...]:
        return runs if where else ()

    return (
        eliminate_dead,
        move_first,
        bound(integer_products, spec),
        # threads load operands without conversion
        *only(spec.execution is not Execution.SIMT, bound(weights_as_bytes, spec)),
        *only(core, bound(block_weights, spec), widen_halves),
        widened,
        *only(keeps, decompose_cells),
        # not for threads: by their estimates whole cells of a batch are faster
        *only(spec.execution is not Execution.SIMT, bound(decompose_resets, spec)),
        bound(sort_rows, spec),
        fold_constants,
        *only(core, packed_tables),
        simplify,
        bound(simplify_products, as_it_lies=core),  # threads read neighbours: transposed matrices are strided
        merge_slices,
        fold_norms,
        convolve_first,
        *only(core, read_shuffled),
        split_activations,
        eliminate_common,
        bound(narrow_products, spec),
        bound(quantize_first, tables=core),
        requantize,
        split_products,
        # splitting [x, h] · W reveals products with a state that is zero
        *only(keeps, cut_rows, fold_constants),
        simplify,
        gather_gates,
        *only(keeps, join_sums),
        # a product of all steps waits for all of them: layers no longer run side by side
        bound(stack_rows, across_waves=not keeps),
        *only(core, split_columns),  # with many vEUs, a copy costs no more than rounds of smaller products
        merge_transposes,
        simplify,
        eliminate_common,
        # one operator instead of two, but the work of a cell is shared by fewer vEUs than that of a product
        *only(not keeps, join_projections),
        bound(transform_large_filters, spec),
        duplicate_dequantize,
        bound(fuse, spec.num_veus * spec.lanes),
        bound(fuse_chains, spec),
        bound(fuse_norms, spec),
        *only(core, bound(fuse_rows, spec)),
        *only(core and spec.lanes > 1, bound(keep_channels_last, spec.lanes)),
        bound(choose_layouts, spec, per_image),
        *only(core, columns_first),
        place,
        mark_static,
    )


def optimize(
    graph: Graph,
    spec: VDeviceSpec,
    *,
    per_image: bool = False,
    watch: Watch = ignore_pass,
    tell: Callable[[str], None] = ignore_note,
) -> Graph:
    """Fold, clean, fuse, choose layouts and place tensors. The result has the same inputs, outputs and meaning.

    `per_image`: keep the data of each image of a batch contiguous, for policies that process image by image. `tell`
    is called with notes for the user.
    """
    for run in passes(spec, per_image, tell):
        graph = run(graph)
        watch(getattr(run, "__name__", "pass"), graph)
    return graph
