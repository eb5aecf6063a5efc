"""Modules compiled by `torch.compile` beside eager PyTorch."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from rammer_torch import dynamo
from torch.utils import _pytree as pytree

FAST = {"tune_seconds": 0.0, "device": 2}


def compiled(module: Any, **options: Any) -> Any:
    """The module by this checkout's backend, whatever is installed; nothing is kept from other tests."""
    torch._dynamo.reset()
    return torch.compile(module, backend=dynamo.backend, options={**FAST, **options})


def largest_difference(a: Any, b: Any) -> float:
    """Over all tensors of two equal structures; types and shapes must agree."""
    pairs = list(zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=True))
    assert all(p.dtype == q.dtype and p.shape == q.shape for p, q in pairs)
    return max(float((p.double() - q.double()).abs().max()) if p.numel() else 0.0 for p, q in pairs)


def train(module: Any, step: Callable[[Any], Any], steps: int, run: Any) -> list[float]:
    """Losses of some steps of SGD with momentum; `step` gives the loss of a module's call."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    losses = []
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = step(run)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def trained_difference(module: Any, step: Callable[[Any], Any], steps: int = 4) -> float:
    """How far losses and everything that was learned lie from what eager PyTorch has after the same steps."""
    other = copy.deepcopy(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing falls back
        ours = train(module, step, steps, compiled(module))
    theirs = train(other, step, steps, other)
    assert ours[0] != ours[-1], "nothing was learned"
    apart = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    return max(apart, largest_difference(module.state_dict(), other.state_dict()))
