"""Find the program of padded extents that serves a request. Each proof that padding changes no result is made once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rammer.errors import ModelError
from rammer.ir.graph import Graph
from rammer.ir.tensor import Shape
from rammer.runtime.call import on_gpu
from rammer.session.buckets import Adjustment, Buckets, Proofs, compared, cut, length_name
from rammer.session.inputs import Request

if TYPE_CHECKING:
    from rammer.frontend.onnx import Imported


@dataclass(frozen=True)
class Padding:
    """The buckets of a session, and what its model needs for them. `key` is a request's, `load` imports its graph."""

    buckets: Buckets
    proofs: Proofs
    key: Callable[[Request], Hashable]
    load: Callable[[Request], Imported]

    def fitted(self, exact: Request) -> tuple[Request, dict[str, Shape]]:
        """Return the request of the program that serves this one, and the outputs' true shapes if it is padded."""
        padded = Request(*self.buckets.padded(exact.shapes, exact.arrays))
        masks = self._masks_of(padded)
        true_shapes: dict[str, Shape] = {}
        if padded.shapes != exact.shapes:
            true_shapes, masks = self._proven(exact, padded, masks)
        if not masks:
            return padded, true_shapes
        extents = self.buckets.extents(exact.shapes)
        lengths = {length_name(s): np.asarray(extents[s], np.int64) for s in {mask.symbol for mask in masks}}
        return Request(padded.shapes, padded.arrays | lengths, masks), true_shapes

    def _masks_of(self, padded: Request) -> tuple[Adjustment, ...]:
        """Return the masks that a padded program needs, by comparison with slightly smaller shapes.

        Returns no masks if these shapes are refused: each run then raises the error itself.
        """
        shapes = self.buckets.probe(padded.shapes)
        if shapes == padded.shapes:
            return ()

        def made() -> tuple[Adjustment, ...]:
            arrays = {n: a if on_gpu(a) or n not in shapes else cut(a, shapes[n]) for n, a in padded.arrays.items()}
            try:
                return self._compared(Request(shapes, arrays), padded)[1]
            except ModelError:
                return ()  # each run raises the error itself

        return self.proofs.once(lambda: ("masks", self.key(padded)), made)

    def _proven(
        self, exact: Request, padded: Request, masks: tuple[Adjustment, ...]
    ) -> tuple[dict[str, Shape], tuple[Adjustment, ...]]:
        """Return the true shapes of the outputs, and the masks needed: those given, if they suffice.

        Raises ModelError if a result depends on the padding.
        """

        def made() -> tuple[dict[str, Shape], tuple[Adjustment, ...]]:
            graph, needed = self._compared(exact, padded)
            shapes = {name: graph.types[name].shape for name in graph.outputs}
            return shapes, masks if set(needed) <= set(masks) else needed

        return self.proofs.once(lambda: ("padding", self.key(exact)), made)

    def _compared(self, exact: Request, padded: Request) -> tuple[Graph, tuple[Adjustment, ...]]:
        """Return the exact graph, and what the padded one has to mask. Raises ModelError."""

        def load(masks: tuple[Adjustment, ...]) -> tuple[Imported, Imported]:
            return self.load(replace(exact, masks=masks)), self.load(replace(padded, masks=masks))

        return compared(load, self.buckets.extents(exact.shapes), self.buckets.extents(padded.shapes))
