"""Describe the paper's networks as layers, for simulation: images [n, h, w, c], words [n, length, width], two bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from benchmarks.graphturbo.simulated import BoxRead, ReadWindow, SimulatedLayer, SimulatedNetwork
from rammer.scheduler.graphturbo.network import Axes

HALF = 2  # bytes of a number
POINT = ReadWindow()
POINTS: Axes = (0, 1, 2, 3)
ROWS: Axes = (0, 1, None)  # of words: a layer reads all of a row


class Net:
    """A list of layers. Each method adds one and returns its number; `~0` is the input."""

    def __init__(self, *shape: int) -> None:
        self._layers: list[SimulatedLayer] = []
        self._input = shape

    def shape(self, x: int) -> tuple[int, ...]:
        return self._layers[x].shape if x >= 0 else self._input

    def add(
        self,
        shape: tuple[int, ...],
        *reads: BoxRead,
        takes_over: int | None = None,
        weights: int = 0,
        mflop: float = 0.0,
    ) -> int:
        """Add a layer of any kind. `weights` is the number of elements."""
        layer = SimulatedLayer(
            shape, HALF * prod(shape), reads, takes_over=takes_over, weights=HALF * weights, mflop=mflop
        )
        self._layers.append(layer)
        return len(self._layers) - 1

    def network(self) -> SimulatedNetwork:
        last = replace(self._layers[-1], is_result=True)
        return SimulatedNetwork((*self._layers[:-1], last), (HALF * prod(self._input),), (self._input,))

    # ---- images

    def conv(
        self, x: int, channels: int, size: int = 1, stride: int = 1, *, apart: bool = False, plus: int | None = None
    ) -> int:
        """Add a convolution with its element-wise operators. `plus` is an image that is added; `apart`: depthwise."""
        n, h, w, inputs = self.shape(x)
        shape = n, -(-h // stride), -(-w // stride), channels
        per = size * size * (1 if apart else inputs)
        axes: Axes = POINTS if apart else (0, 1, 2, None)
        window = ReadWindow(stride, size, (size - 1) // 2)
        reads = [BoxRead(x, axes, (POINT, window, window, POINT))]
        if plus is not None:
            reads.append(BoxRead(plus, POINTS))
        return self.add(shape, *reads, takes_over=plus, weights=per * channels, mflop=2e-6 * prod(shape) * per)

    def pool(self, x: int, size: int, stride: int) -> int:
        n, h, w, c = self.shape(x)
        window = ReadWindow(stride, size, (size - 1) // 2)
        return self.add((n, -(-h // stride), -(-w // stride), c), BoxRead(x, POINTS, (POINT, window, window, POINT)))

    def concat(self, x: int, y: int) -> int:
        """Add a concatenation of channels, in the memory of the first operand if it is not read again."""
        *images, first = self.shape(x)
        other = self.shape(y)[3]
        behind = (POINT, POINT, POINT, ReadWindow(before=first))
        reads = BoxRead(x, POINTS, (POINT,) * 4), BoxRead(y, POINTS, behind)
        return self.add((*images, first + other), *reads, takes_over=x)

    def image_scores(self, x: int, classes: int = 1000) -> SimulatedNetwork:
        """Add the mean over all positions, a product for the scores, and a softmax."""
        n, _, _, c = self.shape(x)
        mean = self.add((n, 1, 1, c), BoxRead(x, (0, None, None, 3)))
        scores = self.add(
            (n, 1, 1, classes), BoxRead(mean, (0, 1, 2, None)), weights=c * classes, mflop=2e-6 * n * c * classes
        )
        self.points(scores)
        return self.network()

    # ---- of any rank

    def points(self, x: int, y: int | None = None, *, over: bool = True) -> int:
        """Add an element-wise operator. It writes in place of its first operand unless that is forbidden."""
        axes = tuple(range(len(self.shape(x))))
        reads = [BoxRead(source, axes) for source in (x, y) if source is not None]
        return self.add(self.shape(x), *reads, takes_over=x if over else None)

    def dense(self, x: int, width: int, plus: int | None = None) -> int:
        """Add a product of rows and weights. `plus` is added."""
        n, length, inputs = self.shape(x)
        reads = [BoxRead(x, ROWS)] + ([] if plus is None else [BoxRead(plus, (0, 1, 2))])
        mflop = 2e-6 * n * length * inputs * width
        return self.add((n, length, width), *reads, takes_over=plus, weights=inputs * width, mflop=mflop)

    def norm(self, x: int) -> int:
        return self.add(self.shape(x), BoxRead(x, ROWS), takes_over=x)


def resnet50(batch: int, *, fused: bool = True) -> SimulatedNetwork:
    """Return a network whose sums are fused into a convolution, or are layers of their own that write in place."""
    net = Net(batch, 224, 224, 3)
    x = net.pool(net.conv(~0, 64, 7, 2), 3, 2)
    for stage, (channels, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = net.conv(net.conv(x, channels), channels, 3, stride)
            shortcut = x if block else net.conv(x, 4 * channels, 1, stride)
            x = net.conv(y, 4 * channels, plus=shortcut) if fused else net.points(net.conv(y, 4 * channels), shortcut)
    return net.image_scores(x)


def mobilenet_v2(batch: int) -> SimulatedNetwork:
    net = Net(batch, 224, 224, 3)
    x = net.conv(~0, 32, 3, 2)
    stages = (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)
    for widened, channels, blocks, stride in stages:
        for block in range(blocks):
            wide = net.shape(x)[3] * widened
            y = net.conv(x, wide) if widened > 1 else x
            y = net.conv(y, wide, 3, 1 if block else stride, apart=True)
            x = net.conv(y, channels, plus=x if block else None)
    return net.image_scores(net.conv(x, 1280))


def densenet121(batch: int) -> SimulatedNetwork:
    net = Net(batch, 224, 224, 3)
    x = net.pool(net.conv(~0, 64, 7, 2), 3, 2)
    for stage, layers in enumerate((6, 12, 24, 16)):
        for _ in range(layers):
            x = net.concat(x, net.conv(net.conv(net.points(x, over=False), 128), 32, 3))
        if stage < 3:
            x = net.points(x)
            x = net.pool(net.conv(x, net.shape(x)[3] // 2), 2, 2)
    return net.image_scores(net.points(x))


def bert(batch: int, length: int, layers: int = 12, width: int = 768, heads: int = 12) -> SimulatedNetwork:
    """Return an encoder of vectors without embeddings, with 11 layers for each of its own layers."""
    net = Net(batch, length, width)
    x, head = ~0, width // heads
    mflop = 2e-6 * batch * length * length * width
    for _ in range(layers):
        q, k, v = (net.dense(x, width) for _ in range(3))
        scores = (batch, heads, length, length)
        by_head = ReadWindow(head, head)
        first = BoxRead(q, (0, 2, 1), (POINT, POINT, by_head)), BoxRead(k, (0, 3, 1), (POINT, POINT, by_head))
        weighed = net.add(scores, *first, mflop=mflop)
        weighed = net.add(scores, BoxRead(weighed, (0, 1, 2, None)), takes_over=weighed)
        second = BoxRead(weighed, (0, None, 1, None)), BoxRead(v, (0, None, 2), (POINT,) * 3)
        mixed = net.add((batch, length, width), *second, mflop=mflop)
        x = net.norm(net.dense(mixed, width, plus=x))
        x = net.norm(net.dense(net.dense(x, 4 * width), width, plus=x))
    return net.network()


NETWORKS: dict[str, Callable[[int], SimulatedNetwork]] = {
    "ResNet-50": resnet50,
    "ResNet-50, sums apart": lambda batch: resnet50(batch, fused=False),
    "BERT-128": lambda batch: bert(batch, 128),
    "BERT-256": lambda batch: bert(batch, 256),
    "BERT-384 large": lambda batch: bert(batch, 384, 24, 1024, 16),
    "BERT-512": lambda batch: bert(batch, 512),
    "MobileNet-v2": mobilenet_v2,
    "DenseNet-121": densenet121,
}
CASES = (  # model, images of a cluster, KiB of a core
    ("ResNet-50", 8, 640),
    ("ResNet-50", 16, 1024),
    ("ResNet-50", 16, 1280),
    ("ResNet-50, sums apart", 16, 1024),
    ("ResNet-50, sums apart", 32, 1280),
    ("BERT-256", 8, 1280),
    ("MobileNet-v2", 32, 1280),
    ("DenseNet-121", 8, 1280),
    ("DenseNet-121", 16, 1024),
)
