"""Make one network of each of timm's families by torch.onnx.export, the smallest of its family, with random weights.

Images are 128 pixels wide unless a network has a size of its own; with `ordinary`, as wide as the network's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import timm
import torch

from benchmarks.families.__main__ import Made
from benchmarks.families.exported import exported

MOST = 28_000_000  # parameters


def _made(name: str, ordinary: bool) -> Made:
    torch.manual_seed(0)
    network = timm.create_model(name, pretrained=False, num_classes=100, exportable=True, scriptable=True)
    if sum(p.numel() for p in network.parameters()) > MOST:
        raise ValueError(f"more than {MOST} parameters")
    channels, side, _ = network.default_cfg["input_size"]
    side = side if ordinary or network.default_cfg.get("fixed_input_size") else 128
    return exported(network, (torch.rand(1, channels, side, side),), ("x",))


_SMALL = "atto femto pico nano zepto micro tiny xxs xs _s small 0 050 lcnet mini 18 lite"


def models(ordinary: bool = False) -> Iterator[tuple[str, Callable[[], Made]]]:
    """Yield names, and functions that make the models."""
    for module in timm.list_modules():
        names = timm.list_models(module=module)
        if not names:
            continue
        ranks = _SMALL.split()
        best = min(names, key=lambda n: (next((k for k, word in enumerate(ranks) if word in n), len(ranks)), len(n)))
        yield best, lambda n=best: _made(n, ordinary)
