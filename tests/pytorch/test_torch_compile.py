"""`torch.compile(module, backend="rammer")` gives what eager PyTorch gives, and says what it leaves to it."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: see CONTRIBUTING.md")

from rammer_torch import dynamo  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from rammer.errors import FallbackWarning  # noqa: E402
from tests.pytorch.eager import compiled, largest_difference, trained_difference  # noqa: E402


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(75, 130), nn.ReLU(), nn.LayerNorm(130), nn.Dropout(0.3), nn.Linear(130, 5))


def test_entry_point_is_the_backend() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "plugins/torch/pyproject.toml").read_text(encoding="utf-8"))
    module, _, name = project["project"]["entry-points"]["torch_dynamo_backends"]["rammer"].partition(":")
    assert callable(getattr(import_module(module), name))


def test_inference_follows_parameters() -> None:
    """They are constants of a Program; when one changes, or is another, outputs do so, too."""
    module, x = perceptron().eval(), torch.randn(3, 75)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        run = compiled(module)
        assert largest_difference(run(x), module(x)) < 1e-5
        module[0].weight.mul_(2)
        assert largest_difference(run(x), module(x)) < 1e-5
        module[4].weight = nn.Parameter(torch.randn(5, 130))
        assert largest_difference(run(x), module(x)) < 1e-5


def test_results_in_any_order() -> None:
    """What a graph gives, be it an input, a result twice or none, comes where it belongs."""

    def swapped(x: Any, y: Any) -> Any:
        return y + 1, x * y, x + 2

    def mixed(x: Any, y: Any) -> Any:
        z = x - y
        return z, y, None, z, 7

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert largest_difference(compiled(swapped)(x, y), swapped(x, y)) < 1e-6
        found = compiled(mixed)(x, y)
        assert torch.equal(found[0], x - y) and found[1] is y and found[2] is None and found[4] == 7
        assert torch.equal(found[3], found[0])


def test_options_are_checked() -> None:
    with pytest.raises(Exception, match=r"InputError: torch\.compile has no option 'polcy'"):
        compiled(perceptron().eval(), polcy="wavefront")(torch.randn(3, 75))


def recurrent(kind: Callable[..., nn.Module], *shape: int, **arguments: Any) -> tuple[nn.Module, Any]:
    return kind(20, 33, **arguments).eval(), torch.randn(*shape)


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Operators of ATen and of ours that are imported, in their order."""
    seen: list[str] = []
    original = dynamo.import_nodes

    def import_nodes(nodes: Any, *rest: Any) -> Any:
        seen.extend(str(n.target) for n in nodes)
        return original(nodes, *rest)

    monkeypatch.setattr(dynamo, "import_nodes", import_nodes)
    return seen


@pytest.mark.parametrize(
    "module, x",
    [
        recurrent(nn.LSTM, 3, 29, 20, num_layers=2, bidirectional=True, batch_first=True),
        recurrent(nn.GRU, 29, 3, 20, bidirectional=True),
        recurrent(nn.RNN, 7, 20, nonlinearity="relu", bias=False),
    ],
    ids=["lstm", "gru", "rnn"],
)
def test_recurrent_layers_are_kept_whole(module: nn.Module, x: Any, imported: list[str]) -> None:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert largest_difference(compiled(module)(x), module(x)) < 1e-5
    assert sum(name.startswith("rammer.") for name in imported) == 1
    assert not any("aten.mm" in name for name in imported)


def test_what_is_unsupported_runs_in_eager() -> None:
    """One warning names it; what is before and after it is compiled."""

    def network(x: Any) -> Any:
        y = torch.linalg.det((x * 2).reshape(-1, 5, 5))
        return (y * 3).tanh()

    x = torch.randn(2, 25)
    with torch.no_grad(), pytest.warns(FallbackWarning, match=r"aten\._linalg_det\.default") as caught:
        assert largest_difference(compiled(network)(x), network(x)) < 1e-5
    assert len(caught) == 1


def test_graph_breaks_are_named() -> None:
    def network(x: Any) -> Any:
        y = x * 2
        torch._dynamo.graph_break()
        return y.exp()

    with torch.no_grad(), pytest.warns(FallbackWarning, match=r"graph breaks at .*test_torch_compile\.py"):
        assert largest_difference(compiled(network)(torch.ones(3)), network(torch.ones(3))) < 1e-6


def test_shapes_may_change() -> None:
    """Dynamo makes dimensions symbolic when they change; each signature gets a Program."""
    module = perceptron().eval()
    with torch.no_grad():
        run = compiled(module)
        for rows in (3, 5, 4, 3):
            x = torch.randn(rows, 75)
            assert largest_difference(run(x), module(x)) < 1e-5


def test_bfloat16() -> None:
    module, x = nn.Linear(75, 33).bfloat16(), torch.randn(3, 75).bfloat16()
    with torch.no_grad():
        assert largest_difference(compiled(module)(x), module(x)) < 0.05


def test_effects_on_inputs_stay() -> None:
    """Whatever a module writes to a tensor, or gives twice, is as in eager PyTorch."""

    def network(x: Any) -> Any:
        x.add_(1)
        return x, x[1:], x.view(-1)

    ours, theirs = torch.zeros(2, 3), torch.zeros(2, 3)
    with torch.no_grad():
        assert largest_difference(compiled(network)(ours), network(theirs)) == 0
    assert torch.equal(ours, theirs)


# training


def test_perceptron_trains() -> None:
    x, y = torch.randn(7, 75), torch.randint(0, 5, (7,))
    assert trained_difference(perceptron(), lambda run: functional.cross_entropy(run(x), y)) < 1e-4


def test_convolutions_train() -> None:
    module = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=2), nn.GELU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(48, 5)),
    )
    x, y = torch.randn(3, 3, 17, 17), torch.randint(0, 5, (3,))
    assert trained_difference(module, lambda run: functional.cross_entropy(run(x), y)) < 1e-4


class LstmTc(nn.Module):
    """LSTM-TC of the paper, small: the last step's output of stacked layers."""

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(hidden, hidden) for _ in range(layers))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)[0]
        return x[-1]


def test_lstm_tc_trains() -> None:
    x, y = torch.randn(6, 3, 16), torch.randn(3, 16)
    assert trained_difference(LstmTc(2, 16), lambda run: functional.mse_loss(run(x), y)) < 1e-4


@pytest.mark.parametrize("arguments", [{"num_layers": 2, "bidirectional": True, "batch_first": True}, {"bias": False}])
def test_gradients_of_lstms(arguments: dict[str, Any], imported: list[str]) -> None:
    """By inputs, first states and parameters, of all that they give; all steps are one operator in either direction."""
    module, x = recurrent(nn.LSTM, 3, 7, 20, **arguments)
    rows = 3 if module.batch_first else 7
    count = module.num_layers * (1 + module.bidirectional)
    given = [x, torch.randn(count, rows, 33), torch.randn(count, rows, 33)]

    def gradients(run: Any) -> list[Any]:
        tensors = [t.detach().requires_grad_() for t in given]
        y, (h, c) = run(tensors[0], (tensors[1], tensors[2]))
        loss = (y * y).sum() + h.sin().sum() + (c * y.mean()).sum()
        return [loss.detach(), *torch.autograd.grad(loss, [*tensors, *module.parameters()])]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours, theirs = gradients(compiled(module)), gradients(module)
    for a, b in zip(ours, theirs, strict=True):
        assert largest_difference(a, b) < 1e-5 * float(b.abs().max())
    assert sorted(name for name in imported if name.startswith("rammer.")) == sorted(
        ["rammer.lstm_steps.default", "rammer.lstm_steps_backward.default"] * count
    )
