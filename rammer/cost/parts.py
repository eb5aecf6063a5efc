"""Split the time of an rTask by what bounds it: arithmetic, other instructions, operands from each memory level.

It divides times that estimates and simulations have found, and computes no others.
"""

from __future__ import annotations

from collections.abc import Iterator

from rammer.cost.estimate import arithmetic_us, fetching, tile_share
from rammer.cost.issue import warm_us
from rammer.cost.price import us_per_byte
from rammer.cost.residency import Bytes
from rammer.cost.work import work
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.plan import Price
from rammer.ir.remembered import memoized
from rammer.ir.tile import TileProgram

ARITHMETIC = "arithmetic at the peak rate"
INSTRUCTIONS = "other instructions"
RTASKS = "rTasks"  # where no more is known


class Parts:
    """Times of rTasks on one device, split. `levels` names the memory levels of `fetched`, as a timeline does."""

    def __init__(self, spec: VDeviceSpec, levels: list[str]) -> None:
        self._spec, self._levels = spec, levels
        self._byte_us = us_per_byte(spec, 1)[0] if levels else None

    def ideal_us(self, kernel: RKernel) -> float:
        """Return the µs of an rTask that computes at the peak rate while its operands arrive at their level's."""
        return max(self._arithmetic_us(kernel), fetching(kernel, self._spec)[1])

    def of(self, kernel: RKernel, us: float, price: Price | None, fetched: Bytes | None) -> Iterator[tuple[str, float]]:
        """Yield the parts of an rTask that takes `us`; they sum to it. `fetched`: its bytes from each level.

        With its price, all that exceeds the time with warm operands is fetching. Without, it is as in the estimate.
        """
        if not kernel.operation.expr.stages:  # of a saved program
            yield RTASKS, us
            return
        outside, shares = 0.0, dict[str, float]()
        if price is None:
            level, fetching_us = fetching(kernel, self._spec)
            outside = us * max(0.0, 1.0 - self._computing_us(kernel) / fetching_us) if fetching_us else 0.0
            shares = {level: 1.0}
        elif fetched is not None and self._byte_us is not None and (alone := fetched * self._byte_us).any():
            outside = max(us - price.warm_us, 0.0)
            shares = dict(zip(self._levels, (alone / alone.sum()).tolist(), strict=True))
        arithmetic_us = min(self._arithmetic_us(kernel), us - outside)
        yield ARITHMETIC, arithmetic_us
        yield INSTRUCTIONS, us - outside - arithmetic_us
        for level, share in shares.items():
            if outside and share:
                yield f"operands from {level}", outside * share

    @memoized
    def _arithmetic_us(self, kernel: RKernel) -> float:
        return arithmetic_us((kernel.form or kernel.operation.expr).stages, self._spec) * tile_share(kernel)

    @memoized
    def _computing_us(self, kernel: RKernel) -> float:
        body = kernel.program
        if not isinstance(body, TileProgram):
            return self._arithmetic_us(kernel)
        return warm_us(work(body, self._spec), self._spec, body.num_threads)
