"""Several models in one program: one plan of all, links between them, and parts that share memory and state."""

from __future__ import annotations

import json
import os
import pickle
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import rammer
from rammer.cli.commands import main
from rammer.compiler.checking import check_model
from rammer.errors import ArtifactError, InputError, ModelError
from rammer.frontend.builder import GraphBuilder
from rammer.ir.graph import Graph
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.runtime import measure
from rammer.runtime.program import Program
from rammer.vdevice.cpu.runtime.executable import CpuExecutable
from rammer_viz.demo import lstm_stack
from tests.layers import attention, conv, quantised

HOW: dict[str, Any] = {"tune_seconds": 0}


def weights(seed: int, *shape: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)


def cell(width: int = 75, units: int = 96, seed: int = 0) -> Graph:
    """A step of a recurrent network: h_out = tanh(x w + h u), y = h_out v."""
    b = GraphBuilder()
    x, h = b.input("x", (1, width)), b.input("h", (1, units))
    products = [b.add("matmul", t, b.constant(weights(seed + n, *s))) for n, (t, s) in enumerate(
        ((x, (width, units)), (h, (units, units)))
    )]  # fmt: skip
    new = b.add("tanh", b.add("add", *products))
    b.output(new, "h_out")
    b.output(b.add("matmul", new, b.constant(weights(seed + 2, units, 40))), "y")
    return b.build()


def product(rows: int, width: int, columns: int, seed: int = 0) -> Graph:
    b = GraphBuilder()
    x = b.input("x", (rows, width))
    b.output(b.add("tanh", b.add("matmul", x, b.constant(weights(seed, width, columns)))), "y")
    return b.build()


def meaning(graph: Graph, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    return evaluate_graph(graph, inputs)


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)


SMALL = {
    "product": product(3, 40, 24),
    "conv": conv(3, 8, 13, 3),
    "attention": attention(28, 32, 4),
    "lstm": rammer.from_onnx(lstm_stack(1, 3, 20)),
    "bytes": quantised(8, 8, 7),
    "cell": cell(),
}
TARGETS = [("cpu", 2), ("cpu", 1), ("interpreter", 3), ("cuda", "emulator:3"), ("ipu", "emulator")]
WIDE = ("cpu", "interpreter")  # targets that run all models, under several policies


@pytest.mark.parametrize(
    ("target", "device", "seed"), [(*where, n) for where in TARGETS for n in range(3 if where[0] in WIDE else 1)]
)
def test_each_model_computes_what_it_does_alone(target: str, device: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = rng.choice([*SMALL], 2 + seed % 2, replace=False) if target in WIDE else ("product", "cell")
    models = {f"m{n}": SMALL[name] for n, name in enumerate(names)}
    policy = ["auto", "wavefront", "sequential"][seed % 3]
    arch = {"arch": "gc200:16"} if target == "ipu" else {}
    with rammer.compile(models, target, device=device, policy=policy, together=[], **arch, **HOW) as program:
        inputs = measure.random_inputs(program.inputs, seed)
        found = program.run(inputs)
    for model, graph in models.items():
        own = {t: inputs[f"{model}.{t}"] for t in graph.inputs}
        with rammer.compile(graph, target, device=device, policy=policy, **arch, **HOW) as unjoined:
            for name, value in unjoined.run(own).items():
                same(found.pop(f"{model}.{name}"), value)
    assert not found


@pytest.mark.parametrize(("target", "device"), TARGETS[::2])
def test_links_are_edges(target: str, device: Any) -> None:
    """One output feeds two models, the order of which is not that of the data; a third stays unconnected."""
    models = {"c": product(3, 24, 75, 1), "a": product(3, 40, 24), "b": product(3, 24, 10, 2), "d": SMALL["cell"]}
    links = {"c.x": "a.y", "b.x": "a.y"}
    with rammer.compile(models, target, device=device, links=links, together=[], **HOW) as program:
        assert [p.name for p in program.inputs] == ["a.x", "d.x", "d.h"]
        assert [p.name for p in program.outputs] == ["c.y", "b.y", "d.h_out", "d.y"]
        inputs = measure.random_inputs(program.inputs, 0)
        found = program.run(inputs)
        assert len(program.plan.programs) == 1 or target != "cpu"
    between = meaning(models["a"], x=inputs["a.x"])["y"]
    same(found["c.y"], meaning(models["c"], x=between)["y"])
    same(found["b.y"], meaning(models["b"], x=between)["y"])
    same(found["d.y"], meaning(models["d"], x=inputs["d.x"], h=inputs["d.h"])["y"])


def test_models_may_feed_each_other_without_a_cycle() -> None:
    """a.p feeds b, and b feeds a.v, which a.p does not depend on: only operators decide what a cycle is."""
    b = GraphBuilder()
    u, v = b.input("u", (3, 8)), b.input("v", (3, 8))
    b.output(b.add("tanh", u), "p")
    b.output(b.add("neg", v), "q")
    a, other = b.build(), product(3, 8, 8)
    with rammer.compile({"a": a, "b": other}, links={"b.x": "a.p", "a.v": "b.y"}, together=[], **HOW) as program:
        x = weights(0, 3, 8)
        same(program(x), -meaning(other, x=np.tanh(x))["y"])


def test_equal_constants_are_stored_once() -> None:
    one, two = product(3, 40, 24), product(5, 40, 24)
    graph = rammer.from_onnx({"a": one, "b": two, "c": one})
    assert len(graph.constants) == 1
    kinds = {id(op.operation) for op in graph.operators}
    assert len(kinds) == 4, "equal operations of two models are one: they share rKernels"


def voice(**options: Any) -> rammer.JointProgram:
    """A cell whose output is the input of another one; both have state."""
    models = {"vad": cell(75, 96), "den": cell(40, 64, 7), "free": product(3, 40, 24)}
    links, state = {"den.x": "vad.y"}, {"vad.h_out": "vad.h", "den.h_out": "den.h"}
    together = [("vad",), ("den",), ("den", "vad"), ("free",)]
    return rammer.compile(models, links=links, state=state, together=together, **HOW, **options)


def test_parts_share_arena_and_weights() -> None:
    with voice() as program:
        executables = [program.executable, *(program.part(*names).executable for names in program.parts[1:])]
        assert all(isinstance(e, CpuExecutable) for e in executables)
        arenas = {e._arena.ctypes.data for e in executables if isinstance(e, CpuExecutable)}
        assert len(arenas) == 1
        parts = [program.part(*names) for names in program.parts]
        alone = sum(w.nbytes for part in parts[1:] for w in part.image.weights.values())
        places = {(w.ctypes.data, w.nbytes) for part in parts for w in part.image.weights.values()}
        whole = sum(w.nbytes for w in program.image.weights.values())
        assert whole <= sum(nbytes for _, nbytes in places) <= 1.3 * whole < alone


@pytest.mark.parametrize(("target", "device"), TARGETS[:4])
def test_state_passes_between_runs_of_the_whole_and_of_parts(target: str, device: Any) -> None:
    with voice(target=target, device=device) as program:
        rng = np.random.default_rng(0)
        state = {"vad": np.zeros((1, 96), np.float32), "den": np.zeros((1, 64), np.float32)}
        cells = {"vad": cell(75, 96), "den": cell(40, 64, 7)}
        second = program.stream()

        def step(model: str, x: np.ndarray) -> np.ndarray:
            found = meaning(cells[model], x=x, h=state[model])
            state[model] = found["h_out"]
            return found["y"]

        for number in range(8):
            x, z = rng.standard_normal((1, 75)).astype(np.float32), rng.standard_normal((1, 40)).astype(np.float32)
            match number % 4:
                case 0:
                    same(program.part("vad").run({"vad.x": x})["vad.y"], step("vad", x))
                case 1:
                    same(program.part("den").run({"den.x": z})["den.y"], step("den", z))
                case 2:
                    found = program.run_together(["vad", "den"], {"vad.x": x})
                    same(found["den.y"], step("den", step("vad", x)))
                case 3:
                    free = weights(number, 3, 40)
                    found = program.run({"vad.x": x, "free.x": free})
                    same(found["den.y"], step("den", step("vad", x)))
                    same(found["free.y"], meaning(product(3, 40, 24), x=free)["y"])
            if number == 4:
                same(second.part("vad").run({"vad.x": x})["vad.y"], meaning(cells["vad"], x=x, h=0 * state["vad"])["y"])
        for model, value in state.items():
            same(program.state()[f"{model}.h"], value)
        program.part("vad").reset()
        assert set(program.state()) == {"den.h"} and not program.part("vad").state()
        same(program.part("den").state()["den.h"], state["den"])


def test_parts_take_turns() -> None:
    """Threads that run different parts at once would overwrite each other's values in the arena."""
    models = {"a": rammer.from_onnx(lstm_stack(1, 3, 40)), "b": attention(75, 64, 4), "c": conv(8, 16, 14, 3)}
    wrong: list[str] = []
    with rammer.compile(models, **HOW) as program:
        wanted = {}
        for name, graph in models.items():
            part = program.part(name)
            inputs = measure.random_inputs(part.inputs, 0)
            wanted[name] = inputs, part.run(inputs)
            for output, value in wanted[name][1].items():
                given = {t: inputs[f"{name}.{t}"] for t in graph.inputs}
                same(value, meaning(graph, **given)[output.partition(".")[2]])

        def runs(name: str) -> None:
            part, (inputs, outputs) = program.part(name), wanted[name]
            made = {n: np.zeros_like(v) for n, v in outputs.items()}
            bound = part.bind(inputs, made)
            for number in range(60):
                bound() if number % 2 else made.update(part.run(inputs))
                if any(not np.array_equal(made[n], v) for n, v in outputs.items()):
                    wrong.append(name)
                if number % 2 == 0:
                    made.update(bound.outputs)

        threads = [threading.Thread(target=runs, args=(name,)) for name in models for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_a_part_survives_the_fork_and_ends_with_the_whole() -> None:
    program = rammer.compile({"a": SMALL["cell"], "b": SMALL["product"]}, **HOW)
    part, other = program.part("a"), program.part("b")
    inputs = measure.random_inputs(part.inputs, 0)
    wanted = part.run(inputs)["a.y"]
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(part.run(inputs)["a.y"], wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0
    part.close()
    other.run(measure.random_inputs(other.inputs, 0))
    program.close()
    for closed in (program, part, other):
        with pytest.raises(InputError, match="closed"):
            closed.run(measure.random_inputs(closed.inputs, 0))


def test_files(tmp_path: Path) -> None:
    """A file has all parts, which share memory and state again; a part is a program of its own."""
    with voice() as program:
        program.save(tmp_path / "all")
        program.part("free").save(tmp_path / "part")
        parts = program.parts
        with pytest.raises(ArtifactError, match="with parts cannot share a file"):
            rammer.save_together([program], tmp_path / "several")
        x, free = weights(1, 1, 75), weights(2, 3, 40)
        with rammer.load(tmp_path / "part") as loaded:
            np.testing.assert_array_equal(loaded.run({"free.x": free})["free.y"], program.part("free")(free))
        with rammer.load(tmp_path / "all") as loaded, pickle.loads(pickle.dumps(program)) as pickled:
            for other in (loaded, pickled):
                assert isinstance(other, rammer.JointProgram) and other.parts == parts
                assert len({other.part(*names).executable._arena.ctypes.data for names in parts}) == 1
                stream, wanted = other.stream(), program.stream()
                for number in range(4):
                    names = parts[1] if number % 2 else parts[0]
                    inputs = {"vad.x": x} if number % 2 else {"vad.x": x, "free.x": free}
                    found = stream.part(*names).run(inputs)
                    for name, value in wanted.part(*names).run(inputs).items():
                        np.testing.assert_array_equal(found.pop(name), value)
                    assert not found
                same(stream.state()["vad.h"], wanted.state()["vad.h"])
    with rammer.compile({"a": SMALL["product"]}, **HOW) as program:
        program.save(tmp_path / "one")
    with rammer.load(tmp_path / "one") as loaded:
        same(loaded(free), meaning(SMALL["product"], x=free)["y"])


@pytest.mark.parametrize("parts", [[["vad"]], 3, [3, 3], [["vad"], ["den"]], {"a": 1}, [[], ["x"]]])
def test_damaged_lists_of_parts(parts: Any, tmp_path: Path) -> None:
    with rammer.compile({"vad": SMALL["product"], "den": SMALL["cell"]}, together=[("vad",)], **HOW) as program:
        program.save(tmp_path / "good")
    with zipfile.ZipFile(tmp_path / "good") as good, zipfile.ZipFile(tmp_path / "bad", "w") as bad:
        for info in good.infolist():
            data = good.read(info)
            if info.filename == "manifest.json":
                data = json.dumps(json.loads(data) | {"parts": parts}).encode()
            bad.writestr(info, data)
    with pytest.raises(ArtifactError, match=r"damaged|not a readable program"):
        rammer.load(tmp_path / "bad")


GIVEN = {"vad": product(3, 40, 24), "den": product(3, 24, 40)}
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"links": {"den.q": "vad.y"}}, InputError, "'den.q', which is not an input of the models\n.*did you mean 'den.x'"),
    (
        {"links": {"den.x": "vda.y"}},
        InputError,
        "'vda.y', which is not an output of the models\n.*did you mean 'vad.y'",
    ),
    ({"links": {"vad.x": "vad.y"}}, InputError, r"'vad.y', float32\[3×24\], the input 'vad.x', float32\[3×40\]"),
    ({"links": {"den.x": "vad.y", "vad.x": "den.y"}}, InputError, "den.x=vad.y, vad.x=den.y form a cycle: .*vad.*den"),
    (
        {"state": {"vad.y": "den.x"}, "links": {"den.x": "vad.y"}},
        InputError,
        "state= names 'vad.y', which is no output",
    ),
    ({"state": {"y": "x"}}, InputError, "state= names 'y', which is no output"),
    ({"shapes": {"x": (3, 40)}}, InputError, "shapes= names 'x', which is of no model"),
    ({"dims": {"vda.n": 3}}, InputError, "dims= names 'vda.n', which is of no model\n.*did you mean 'vad'"),
    ({"together": [("vda",)]}, InputError, "together= names 'vda', which is not a model\n.*did you mean 'vad'"),
    ({"together": ["vad"]}, InputError, "together= has the string 'vad' instead of a set of models"),
    ({"together": [()]}, InputError, "an empty set"),
    ({"example": 3}, InputError, "example= of several models is a mapping"),
]


@pytest.mark.parametrize(("options", "error", "text"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_what_does_not_fit_is_named(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        rammer.compile(GIVEN, "interpreter", **options)


def test_checking_several_models() -> None:
    how = rammer.CompileOptions(target="interpreter", links={"den.x": "vad.y"})
    rows = check_model(GIVEN, how, every=True)
    assert {row.tensor for row in rows} > {"den.y", "matmul 'vad.matmul'"} and not any(row.differs for row in rows)


@pytest.mark.parametrize("names", [["a.b"], [""], ["a b"], ["-a"], ["a" * 65], []])
def test_names_of_models(names: list[str]) -> None:
    with pytest.raises(InputError, match=r"is not a name for a model|no model is given"):
        rammer.compile(dict.fromkeys(names, SMALL["product"]), "interpreter")


def test_errors_name_the_model() -> None:
    bad = helper.make_graph(
        [helper.make_node("Nonsense", ["x"], ["y"], "n")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (3,))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    with pytest.raises(ModelError, match="Nonsense") as error:
        rammer.compile({"vad": SMALL["product"], "den": helper.make_model(bad)}, "interpreter")
    assert "in the model 'den'" in error.value.__notes__
    with pytest.raises(InputError, match="links= connects several models"):
        rammer.compile(SMALL["product"], "interpreter", links={"a.x": "b.y"})
    with pytest.raises(InputError, match="together= is for several models"):
        rammer.compile(SMALL["product"], "interpreter", together=[("a",)])
    with rammer.compile({"a": SMALL["product"], "b": SMALL["product"]}, "interpreter", together=[("a",)]) as program:
        assert program.part("a", "b") is program
        with pytest.raises(InputError, match="no model named 'c'"):
            program.part("c")
        with pytest.raises(InputError, match=r"no plan was compiled for 'b' alone\n.*\('b',\)"):
            program.part("b")
        with pytest.raises(InputError, match=r"no input named 'b\.x'"):
            program.run_together(["a"], {"b.x": weights(0, 3, 40)})


def file(path: Path, width: int, columns: int) -> str:
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", width))],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(weights(width, width, columns), "w")],
        )
    )
    onnx.save(model, path)
    return str(path)


def test_the_command_line(tmp_path: Path) -> None:
    """Compile two files with a link, run the result, and run the files themselves."""
    models = [f"vad={file(tmp_path / 'a.onnx', 40, 24)}", f"den={file(tmp_path / 'b.onnx', 24, 10)}"]
    both = [*models, "--link", "den.x=vad.y", "--dim", "vad.n=3", "--dim", "den.n=3", "--tune-seconds", "0"]
    x = weights(1, 3, 40)
    np.save(tmp_path / "x.npy", x)
    given = ["--input", f"vad.x={tmp_path / 'x.npy'}", "--save"]

    def ran(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == code, result.output
        return result.output

    saved = str(tmp_path / "p.rammer")
    ran("compile", *both, "-o", saved)
    ran("run", saved, *given, str(tmp_path / "1"))
    ran("run", *both, *given, str(tmp_path / "2"))
    for folder in "12":
        same(np.load(tmp_path / folder / "0.npy"), x @ weights(40, 40, 24) @ weights(24, 24, 10))
    assert "den.y" in ran("show", *both)
    ran("compile", *both, "--together", "vad", "-o", saved)
    with rammer.load(saved) as loaded:
        assert isinstance(loaded, rammer.JointProgram) and loaded.parts == (("vad", "den"), ("vad",))
    ran("export", *both, "--together", "vad", "-o", str(tmp_path / "project"))
    assert "vad_den_vad_model;" in (tmp_path / "project" / "include" / "vad_den.h").read_text()
    assert "NAME=FILE" in ran("compile", models[0], "b.onnx", "-o", saved, code=2)
    assert "two models are named 'vad'" in ran("compile", models[0], models[0], "-o", saved, code=2)


def test_a_part_is_a_program() -> None:
    with rammer.compile({"a": SMALL["product"]}, "interpreter") as program:
        assert program.parts == (("a",),) and program.part("a") is program and isinstance(program, Program)
