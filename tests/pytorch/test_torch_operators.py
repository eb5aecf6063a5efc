"""What each operator of ATen means here is what eager PyTorch computes; a graph of many operators at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: see CONTRIBUTING.md")

from torch.nn import functional as F  # noqa: E402

from tests.pytorch.eager import compiled, largest_difference  # noqa: E402


def pointwise(x: Any, n: Any) -> Any:
    """Types are promoted as torch does it; near 0 and far from it."""
    near, positive = x * 1e-4, x.abs() + 0.1
    yield from (torch.log1p(near), torch.expm1(near), torch.log1p(positive), torch.expm1(x), torch.log2(positive))
    yield from (torch.atan2(x, x.flip(0)), torch.rsqrt(positive), torch.remainder(x, -0.7), torch.fmod(x, 0.7))
    yield from (x + n, x * n, n / 3, n // -2, n % 3, torch.div(x, 0.3, rounding_mode="trunc"), n**2, 2**x, x.trunc())
    yield from (x > n, n == 2, torch.where(x > 0, x, n), n.bool() & (x > 0), ~n, n & 6, (x > 0) | (n > 2), x.round())
    yield from (x.clamp(-0.5, 0.5), n.clamp(min=2), x.clamp(max=x.mean()), torch.maximum(x, near), x.sign(), x.isnan())
    yield from (F.silu(x), F.gelu(x), F.gelu(x, approximate="tanh"), F.elu(x), F.selu(x), F.mish(x), F.softplus(x))
    yield from (F.hardswish(x), F.hardsigmoid(x), F.leaky_relu(x, 0.2), F.relu6(x * 9), F.logsigmoid(x), F.celu(x, 2.0))
    yield from (x.softmax(-1), x.log_softmax(0), F.glu(x, 1), x.to(torch.float64), n.float(), torch.full_like(n, 7))


def movement(x: Any, n: Any) -> Any:
    yield from (
        x.view(5, -1),
        x.t(),
        x[1:, ::2],
        x[-1],
        x[:, None, 3],
        x.repeat(2, 1),
        x.flip(1),
        x.roll(2, 1),
        x.expand(2, -1, -1),
    )
    yield from (
        torch.cat([x, x * 2], 1),
        torch.stack([x, x]),
        *x.split(3, 1),
        x.unfold(1, 3, 2),
        x.diagonal(),
        x.tril(),
    )
    yield from (
        F.pad(x, (1, 2), value=3.0),
        F.pad(x[None], (2, 1), mode="reflect"),
        F.pad(x[None], (2, 1), mode="replicate"),
    )
    yield from (F.pad(x, (-1, 1)), torch.slice_scatter(x, x[:, :2], 1, 3, 5), torch.select_scatter(x, x[0], 0, 2))
    yield from (torch.arange(9) * 2, torch.eye(3), torch.zeros(0, 3), F.pixel_shuffle(x[:4].reshape(1, 8, 3, 1), 2))


def by_places(x: Any, n: Any) -> Any:
    rows, columns = torch.tensor([0, 3, -1]), torch.tensor([[1], [4]])
    inner = x[None].clone()
    inner[:, :, rows] = x[:, :3]
    yield inner
    yield from (x[rows], x[:, rows], x[rows[None], columns], x[None][:, rows, columns], x.index_select(1, rows[:2]))
    yield from (x.gather(1, n.clamp(0, 5)), x.scatter(1, n.clamp(0, 0), 9.0), x.index_put((rows[:2],), x[:2]))
    yield from (
        x.index_put((rows,), x[:3], accumulate=True),
        x.scatter_add(1, n.clamp(0, 5), x),
        x.masked_fill(x > 0, 2),
    )
    yield from (
        *x.topk(3),
        x.sort(1, descending=True)[0],
        F.one_hot(n.clamp(0, 7), 8),
        x.scatter_reduce(1, n.clamp(0, 5), x, "amax"),
    )
    yield x.masked_scatter(x > 0, x.flip(0))


def reductions(x: Any, n: Any) -> Any:
    yield from (x.sum(), x.sum(0), n.sum(1, keepdim=True), x.mean(), x.mean((0, 1), keepdim=True), x.prod(1), x.amax(1))
    yield from (x.var(1), x.std(), torch.var_mean(x, 0)[1], x.norm(), x.logsumexp(0), x.cumsum(1), n.cumsum(0), x.max())
    yield from (x.argmax(1), x.argmin(), *x.max(1), (x > 0).any(1), (x > -9).all(), torch.linalg.vector_norm(x, 1, 0))
    yield from (
        x @ x.t(),
        torch.einsum("ij,kj->ik", x, x),
        torch.baddbmm(x[None, :, :5], x[None], x.t()[None]),
    )
    yield torch.addmm(x[:, :5], x, x.t(), beta=0.5, alpha=2)
    yield torch.mm(x.repeat(40, 2).t(), x[:, :3].repeat(40, 1))  # of many rows: the gradient of a weight


def images(x: Any, n: Any) -> Any:
    y = x.view(1, 3, 2, 5).repeat(2, 2, 4, 2)  # [2, 6, 8, 10]
    w, d = torch.ones(4, 3, 3, 2) / 9 + x[0, 0], torch.ones(6, 2, 3, 3) / 9 - x[0, 1]
    yield from (
        F.conv2d(y, w, groups=2, padding=1, stride=2),
        F.conv_transpose2d(y, d, stride=2, output_padding=1, groups=2),
    )
    yield from (
        F.max_pool2d(y, 3, 2, 1),
        *F.max_pool2d(y, 2, return_indices=True),
        F.avg_pool2d(y, 3, 2, 1),
        F.avg_pool1d(y[0], 4),
    )
    yield from (F.avg_pool2d(y, 3, 2, 1, ceil_mode=True, count_include_pad=False), F.adaptive_avg_pool2d(y, (4, 5)))
    yield from (
        F.adaptive_avg_pool2d(y, 3),
        F.adaptive_max_pool2d(y, 2),
        F.adaptive_avg_pool2d(y, 1),
        F.instance_norm(y),
    )
    yield from (
        F.interpolate(y, scale_factor=2),
        F.interpolate(y, size=(5, 13)),
        F.interpolate(y, size=(5, 13), mode="bilinear"),
    )
    yield F.interpolate(y, scale_factor=1.5, mode="bicubic", align_corners=False)
    yield F.interpolate(y, size=(16, 20), mode="bilinear", align_corners=True)
    yield F.interpolate(y, size=(5, 13), mode="bilinear", antialias=True)
    yield F.interpolate(y, scale_factor=0.6, mode="bicubic", antialias=True)
    yield from (
        F.group_norm(y, 3),
        F.layer_norm(y, (10,)),
        F.rms_norm(y, (10,)),
        F.batch_norm(y, y[0, :, 0, 0], y[0, :, 0, 1] ** 2),
    )
    yield from (
        F.grid_sample(y, y.view(2, 8, 10, 6)[..., :2].tanh(), align_corners=False),
        F.grid_sample(y, y.view(2, 8, 10, 6)[..., :2], "bicubic", "border", align_corners=True),
        F.grid_sample(y, y.view(2, 8, 10, 6)[..., :2], "bicubic", "reflection", align_corners=False),
        F.unfold(y, 3),
        F.scaled_dot_product_attention(y, y, y, is_causal=True),
    )


@pytest.mark.parametrize("functions", [pointwise, movement, by_places, reductions, images], ids=lambda f: f.__name__)
def test_operators(functions: Callable[[Any, Any], Any]) -> None:
    torch.manual_seed(0)
    x, n = torch.randn(5, 6), torch.randint(-3, 5, (5, 6))

    def network(x: Any, n: Any) -> Any:
        return tuple(functions(x, n))

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        ours, theirs = compiled(network)(x, n), network(x, n)
        for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert largest_difference(a, b) < 1e-5 * max(float(b.double().abs().max()) if b.numel() else 0, 1), number
