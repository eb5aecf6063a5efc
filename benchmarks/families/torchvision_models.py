"""Make all of torchvision's models by torch.onnx.export, with random weights.

Norms have statistics of four images. A detector's scores are spread, so that no two boxes are as good as each other:
their order is that of the model, and not of rounding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torchvision
from torch import nn

from benchmarks.families.__main__ import Made
from benchmarks.families.exported import exported
from benchmarks.torch.modules import draw_constants

DETECTED = 128  # the side that detectors scale images to, instead of 800
_IMAGES = {  # sizes by how names begin, where a network admits only some; others get the last
    **dict.fromkeys(("alexnet", "maxvit", "vgg", "vit_"), (224, 224)),
    **dict.fromkeys(("googlenet", "inception", "quantized_googlenet", "quantized_inception", "raft"), (128, 128)),
    "mvit": (16, 224, 224),
    "s3d": (14, 224, 224),
    **dict.fromkeys(("mc3", "r2plus1d", "r3d", "swin3d"), (8, 64, 64)),  # frames, height and width
    "": (96, 96),
}
_SAMPLES = 4  # images that norms see
_SCORES = re.compile(r"cls_score|cls_logits|bbox_ctrness|classification_head|kps_score|mask_fcn_logits")
_SPREAD = 2.0  # the standard deviation of scores
_BOXES = 20  # that a detector returns: few, so that few are close to each other


def _made(name: str) -> Made:
    torch.manual_seed(0)
    kind = torchvision.models.get_model_builder(name).__module__.removeprefix("torchvision.models.").partition(".")[0]
    options: dict[str, Any] = {"weights": None}
    if kind in ("detection", "segmentation"):
        options["weights_backbone"] = None
    if kind == "detection":  # without a threshold, so that random weights detect something
        options["box_score_thresh" if "rcnn" in name else "score_thresh"] = 0.0
        options["box_detections_per_img" if "rcnn" in name else "detections_per_img"] = _BOXES
        if not name.startswith("ssd"):  # whose sizes are fixed
            options |= {"min_size": DETECTED, "max_size": DETECTED}
    if kind == "quantization":
        options["quantize"] = True
    network = torchvision.models.get_model(name, **options).eval()
    images = torch.rand(_SAMPLES, 3, *next(size for start, size in _IMAGES.items() if name.startswith(start)))
    images *= torch.linspace(1, 0.25, _SAMPLES).view(-1, *[1] * (images.dim() - 1))  # norms of means magnify otherwise
    if kind != "quantization":  # whose numbers are packed, and whose norms are folded
        draw_constants(network)
        _weaken(network)
        _settle(network, _inputs(kind, images))
    return exported(network, _inputs(kind, images[:1]), ("x", "y")[: 1 + (kind == "optical_flow")])


def _inputs(kind: str, images: torch.Tensor) -> tuple[Any, ...]:
    if kind == "optical_flow":
        return images, images.roll(3, -1)
    return ([*images] if kind == "detection" else images,)


@torch.no_grad()
def _weaken(network: nn.Module) -> None:
    """Weaken the branches of residual networks: as strong as the path beside them, a hundred magnify rounding."""
    for name, parameter in network.named_parameters():
        if name.endswith("bn3.weight"):
            parameter *= 0.25


def _settle(network: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Give norms the statistics of inputs, and spread the scores that layers give for them.

    A detector's head computes scores of several maps. Those of the first one count, which has most: spread for the
    smallest map, they are so large that their sigmoid is 1 for all.
    """
    done = set[nn.Module]()

    def spread(layer: nn.Module, _: Any, scores: torch.Tensor) -> torch.Tensor:
        factor = 1.0 if layer in done else _SPREAD / scores.std()
        done.add(layer)
        layer.weight.data *= factor  # type: ignore[operator, union-attr]
        return scores * factor

    hooks = []
    for name, module in network.named_modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm3d):
            module.train().momentum = None  # the plain mean, of one batch
        if _SCORES.search(name) and isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            hooks.append(module.register_forward_hook(spread))
    with torch.no_grad():
        network(*inputs)
    for hook in hooks:
        hook.remove()
    network.eval()


def models() -> Iterator[tuple[str, Callable[[], Made]]]:
    """Yield names, and functions that make the models."""
    for name in sorted(torchvision.models.list_models()):
        yield name, lambda n=name: _made(n)
