"""Modules, exported programs and TorchScript become Programs; tensors go in and come out."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: see CONTRIBUTING.md")

from torch import nn  # noqa: E402

import rammer  # noqa: E402
from rammer.errors import InputError, ModelError  # noqa: E402
from rammer.ir.semantics.evaluate import evaluate_graph  # noqa: E402

FAST: dict[str, Any] = {"tune_seconds": 0.0, "device": 2}


class Tagger(nn.Module):
    """Words to tags, as a dict; with a recurrent layer, an index and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn, self.tags = nn.Embedding(99, 20), nn.GRU(20, 30, batch_first=True), nn.Linear(30, 7)

    def forward(self, ids: Any, keep: Any) -> dict[str, Any]:
        states, last = self.rnn(self.words(ids))
        return {"tags": self.tags(states).masked_fill(~keep[..., None], -1.0), "last": last[0]}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def test_modules_have_names() -> None:
    module = Tagger().eval()
    given = {"ids": torch.randint(0, 99, (3, 29)), "keep": torch.rand(3, 29) < 0.5}
    graph = rammer.from_torch(module, given)
    assert (graph.inputs, graph.outputs) == (("ids", "keep"), ("tags", "last"))
    weight = module.words.weight.detach().numpy()
    assert any(np.shares_memory(weight, c) for c in graph.constants.values())
    with torch.no_grad(), rammer.compile(module, example=tuple(given.values()), **FAST) as program:
        found, wanted = program.run(given), module(**given)
        for name, tensor in wanted.items():
            torch.testing.assert_close(torch.from_dlpack(found[name]), tensor, rtol=1e-5, atol=1e-5)


def test_ports_have_the_names_that_are_given() -> None:
    """Also where a tensor inside has such a name; the meaning stays."""
    module, given = Tagger().eval(), {"ids": torch.randint(0, 99, (3, 29)), "keep": torch.rand(3, 29) < 0.5}
    usual = rammer.from_torch(module, given)
    inside = usual.operators[0].outputs[0]
    graph = rammer.from_torch(module, given, input_names=["words", "mask"], output_names=[inside, "ids"])
    assert (graph.inputs, graph.outputs) == (("words", "mask"), (inside, "ids"))
    arrays = [tensor.numpy() for tensor in given.values()]
    found = evaluate_graph(graph, dict(zip(graph.inputs, arrays, strict=True)))
    wanted = evaluate_graph(usual, dict(zip(usual.inputs, arrays, strict=True)))
    for name, value in zip(graph.outputs, wanted.values(), strict=True):
        np.testing.assert_array_equal(found[name], value)
    how = {"example": given, "output_names": ["a", "b"]}
    with rammer.compile(module, **how, **FAST) as program:
        assert [port.name for port in program.outputs] == ["a", "b"]
    for names, text in ((["a"], "has 1 names for 2"), (["a", "a"], "twice"), (["ids", "b"], "twice")):
        with pytest.raises(InputError, match=text):
            rammer.from_torch(module, given, output_names=names)
    with pytest.raises(InputError, match="are for one model"):
        rammer.compile({"tagger": module}, example={"tagger": given}, input_names=["a", "b"])


def test_parameters_are_shared() -> None:
    """Every parameter and buffer that is used lies where the module has it, and nothing large beside them."""
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 25, 40)).eval()
    graph = rammer.from_torch(module, torch.randn(2, 3, 7, 7))
    held = [t.detach().numpy() for t in module.state_dict().values() if t.dim()]
    for array in held:
        assert any(np.shares_memory(array, c) for c in graph.constants.values())
    copies = [c for c in graph.constants.values() if not any(np.shares_memory(a, c) for a in held)]
    assert sum(c.nbytes for c in copies) < 100
    with torch.no_grad():
        module[4].weight.zero_()
    with rammer.compile(graph, **FAST) as program:  # packed now, with what the parameters are
        np.testing.assert_array_equal(program(torch.randn(2, 3, 7, 7)), np.tile(held[-1], (2, 1)))


class OnlyDlpack:
    """A tensor of some other library."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **how: Any) -> Any:
        return self._tensor.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()  # type: ignore[no-any-return]


def test_dlpack_in_and_out() -> None:
    """Whatever offers it is taken; an output is a tensor without a copy, and stays when the next run has begun."""
    module, x = nn.Linear(75, 33).eval(), torch.randn(5, 75)
    with torch.no_grad(), rammer.compile(module, example=x, **FAST) as program:
        found = program(OnlyDlpack(x))
        tensor = torch.from_dlpack(found)
        assert tensor.data_ptr() == found.ctypes.data
        program(x * 2)
        torch.testing.assert_close(tensor, module(x), rtol=1e-5, atol=1e-5)
        given = torch.zeros(5, 75)
        bound = program.bind({"input": given.numpy()})
        given.copy_(x)  # what a bound call reads is the tensor's own memory
        bound()
        torch.testing.assert_close(torch.from_dlpack(bound.outputs["output"]), module(x), rtol=1e-5, atol=1e-5)


def test_tensors_of_any_kind_are_taken() -> None:
    """Those that require gradients are read as they are; element types that NumPy lacks are kept."""
    module = nn.Linear(75, 5)
    with rammer.compile(module.eval(), example=torch.ones(3, 75), **FAST) as program:
        x = torch.randn(3, 75, requires_grad=True)
        np.testing.assert_allclose(program(x), module(x).detach().numpy(), atol=1e-5)
        np.testing.assert_allclose(program(x.detach().T.contiguous().T), program(x))
    with rammer.compile(module.bfloat16(), example=torch.ones(3, 75, dtype=torch.bfloat16), **FAST) as program:
        x = torch.randn(3, 75).bfloat16()
        found = program(x)
        assert found.dtype == ml_dtypes.bfloat16
        np.testing.assert_allclose(found.astype(np.float32), module(x).detach().float().numpy(), atol=0.05)


def test_other_forms_of_a_module(tmp_path: Path) -> None:
    """Files of TorchScript and what they hold, an ExportedProgram, and an ONNXProgram."""
    module, x = (
        nn.Sequential(nn.Conv1d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 27, 3)).eval(),
        torch.randn(2, 4, 29),
    )
    wanted = module(x).detach().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that TorchScript is old
        torch.jit.trace(module, x).save(path := tmp_path / "module.pt")
        scripted = torch.jit.load(path)
    for form, example in ((path, x), (scripted, (x,)), (torch.export.export(module, (x,)), None)):
        found = evaluate_graph(rammer.from_torch(form, example), {"input": x.numpy()})
        np.testing.assert_allclose(found["output"], wanted, atol=1e-5)
        with rammer.compile(form, example=example, **FAST) as program:
            np.testing.assert_allclose(program(x), wanted, atol=1e-5)
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: see CONTRIBUTING.md")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what its exporter says is about its own parts
        exported = torch.onnx.export(module, (x,), dynamo=True, verbose=False)
    with rammer.compile(exported, **FAST) as program:
        np.testing.assert_allclose(program(x), wanted, atol=1e-5)


def test_scripts_have_names(tmp_path: Path) -> None:
    class Two(nn.Module):
        def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return left @ right, left.tanh()

    given = {"left": torch.randn(3, 4), "right": torch.randn(4, 5)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Two()).save(tmp_path / "two.pt")
    for example in (given, tuple(given.values())):
        graph = rammer.from_torch(tmp_path / "two.pt", example)
        assert (graph.inputs, graph.outputs) == (("left", "right"), ("output_0", "output_1"))


def test_what_cannot_be_imported_is_listed(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linalg.det(x) + torch.bernoulli(x)[0, 0]

    x = torch.rand(4, 4)
    with pytest.raises(ModelError, match=r"2 unsupported operators: .*_linalg_det.*bernoulli"):
        rammer.from_torch(Odd().eval(), x)
    with pytest.raises(ModelError, match=r"in training mode\n.*module\.eval"):
        rammer.from_torch(nn.Dropout(), x)
    with pytest.raises(ModelError, match=r"needs inputs to be traced with\n.*example="):
        rammer.compile(nn.ReLU())
    with pytest.raises(ModelError, match="example= is for modules"):
        rammer.compile("model.onnx", example=x)
    open_ = torch.export.export(nn.ReLU(), (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    with pytest.raises(ModelError, match=r"input 'input' of the exported program has open dimensions: \[.*, 4\]"):
        rammer.compile(open_)
    torch.save(nn.ReLU(), tmp_path / "pickled.pt")
    with pytest.raises(ModelError, match=r"pickled\.pt: no file of TorchScript(.|\n)*torch\.load"):
        rammer.compile(tmp_path / "pickled.pt", example=x)
    with pytest.raises(ModelError, match=r"is a ZIP archive(.|\n)*TorchScript needs example="):
        rammer.compile(tmp_path / "pickled.pt")
    with pytest.raises(ModelError, match=r"type ReLU is not an ONNX model(.|\n)*example="):
        rammer.Session(nn.ReLU())  # type: ignore[arg-type]
