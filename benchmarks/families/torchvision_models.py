"""Make torchvision's classifiers, and its detectors and segmenters, by torch.onnx.export, with random weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torchvision

from benchmarks.families.__main__ import Made
from benchmarks.families.exported import exported

SIDE = 96  # of an image; some networks need more
DETECTED = 128  # the side that detectors scale images to, instead of 800
_LARGER = {"inception_v3": 128, "googlenet": 128, "maxvit_t": 224, "alexnet": 96}
_FIXED = ("vit_", "maxvit")  # of the size that they were made for
_NO_IMAGES = ("raft", "mc3", "mvit", "r2plus1d", "r3d", "s3d", "swin3d", "quantized")


def _made(name: str) -> Made:
    torch.manual_seed(0)
    options: dict[str, Any] = {"weights": None}
    if "detection" in _module(name) or "segmentation" in _module(name):
        options["weights_backbone"] = None
    if "detection" in _module(name):  # without a threshold, so that random weights detect something
        options["box_score_thresh" if "rcnn" in name else "score_thresh"] = 0.0
        if not name.startswith("ssd"):  # whose sizes are fixed
            options |= {"min_size": DETECTED, "max_size": DETECTED}
    network = torchvision.models.get_model(name, **options)
    side = 224 if name.startswith(_FIXED) else _LARGER.get(name, SIDE)
    image = torch.rand(1, 3, side, side)
    return exported(network, ([image[0]] if "detection" in _module(name) else image,), ("x",))


def _module(name: str) -> str:
    return torchvision.models.get_model_builder(name).__module__


def models() -> Iterator[tuple[str, Callable[[], Made]]]:
    """Yield names, and functions that make the models."""
    for name in sorted(torchvision.models.list_models()):
        if not name.startswith(_NO_IMAGES) and not ("vit_" in name and "_14" in name):
            yield name, lambda n=name: _made(n)
