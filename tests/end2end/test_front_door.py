"""What users and operators do to the command line and to `compile`, and must not be punished for."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

import rammer
from rammer.cli.commands import main
from rammer.errors import ArtifactError, InputError, ModelError
from rammer_viz.demo import lstm_stack


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("front-door")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    onnx.save(lstm_stack(1, 4, 16), folder / "lstm.onnx")
    return folder / "lstm.onnx"


@pytest.fixture(scope="module")
def saved(folder: Path, model: Path) -> Path:
    with rammer.compile(model, "cpu", device=1, policy="round_robin", tune_seconds=0) as program:
        program.save(folder / "lstm.rammer")
    return folder / "lstm.rammer"


def call(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def gemm(rows: int | str = "n") -> onnx.ModelProto:
    """x [rows, 64] · w [64, 50], ReLU."""
    weights = np.random.default_rng(0).standard_normal((64, 50)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, e]) for n, e in (("x", 64), ("y", 50))]
    graph = helper.make_graph(nodes, "gemm", ports[:1], ports[1:], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


class TestOutputs:
    @pytest.mark.parametrize(
        "arguments",
        [("compile", "-o"), ("show", "--html"), ("show", "--svg"), ("show", "--plan"), ("show", "--trace")],
        ids=" ".join,
    )
    def test_no_command_overwrites_its_model(self, model: Path, tmp_path: Path, arguments: tuple[str, str]) -> None:
        (tmp_path / "other-name.onnx").hardlink_to(model)
        before = model.read_bytes()
        command, option = arguments
        text = call(command, model, option, tmp_path / "other-name.onnx", code=1).output
        assert "it is being read as the input" in text and model.read_bytes() == before

    def test_no_program_overwrites_its_model_or_the_weights_beside_it(self, tmp_path: Path) -> None:
        onnx.save(gemm(8), tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
        before = [(tmp_path / name).read_bytes() for name in ("m.onnx", "w.bin")]
        with rammer.compile(tmp_path / "m.onnx", "interpreter") as program, pytest.raises(ArtifactError):
            program.save(tmp_path / "m.onnx")
        with rammer.compile(tmp_path / "m.onnx", "cpu", tune_seconds=0) as program:
            for name in ("m.onnx", "w.bin"):
                with pytest.raises(ArtifactError, match="it is being read as the input"):
                    program.save(tmp_path / name)
        assert [(tmp_path / name).read_bytes() for name in ("m.onnx", "w.bin")] == before

    def test_saved_outputs_spare_the_inputs(self, model: Path, tmp_path: Path) -> None:
        np.save(tmp_path / "0.npy", np.ones((4, 1, 16), np.float32))
        before = (tmp_path / "0.npy").read_bytes()
        call("run", model, "--input", f"x={tmp_path / '0.npy'}", "--save", tmp_path, code=1)
        assert (tmp_path / "0.npy").read_bytes() == before

    @pytest.mark.parametrize(
        "arguments",
        [
            ("compile", "-o", "no/such/file"),
            ("show", "--html", "no/such/file"),
            ("show", "--svg", "pipe"),
            ("run", "--save", "file/folder"),
        ],
        ids=" ".join,
    )
    def test_outputs_that_cannot_be_written_are_named_before_any_work(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, str, str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "file").write_text("")
        os.mkfifo(tmp_path / "pipe")
        command, option, name = arguments
        text = call(command, "absent.onnx", option, name, code=1).output
        assert "absent.onnx" not in text and name in text.replace("\n", "")


class TestKinds:
    """Files are known by what is in them."""

    @pytest.mark.parametrize("name", ["model.pb", "M.ONNX", "model", "model.rammer"])
    def test_a_model_of_any_name(self, model: Path, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes(model.read_bytes())
        assert "4×1×16" in call("run", tmp_path / name).output

    @pytest.mark.parametrize("name", ["program.onnx", "program"])
    def test_a_program_of_any_name(self, saved: Path, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes(saved.read_bytes())
        assert "4×1×16" in call("run", tmp_path / name).output

    def test_what_is_given_to_the_wrong_door_is_sent_to_the_right_one(
        self, model: Path, saved: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "m.tflite").write_bytes(b"\x1c\0\0\0TFL3")
        with pytest.raises(ArtifactError, match="this is no saved program") as caught:
            rammer.load(tmp_path / "m.tflite")
        assert "rammer.compile" in caught.value.hint and "from_tensorflow" in caught.value.hint
        with pytest.raises(ModelError, match=r"a tflite, not an ONNX model(.|\n)*rammer\.from_tensorflow"):
            rammer.from_onnx(tmp_path / "m.tflite")
        with pytest.raises(ModelError, match="not a model of TensorFlow"):
            rammer.from_tensorflow(model)
        with pytest.raises(ModelError, match="this is a ZIP archive, not an ONNX model") as refused:
            rammer.compile(saved)
        assert "rammer.load" in refused.value.hint

    def test_old_names_of_loading_work_and_warn(self, model: Path, saved: Path) -> None:
        wanted = rammer.from_onnx(model)
        for given, options in ((model, {}), (model.read_bytes(), {}), (onnx.load(model), {"dims": {}})):
            with pytest.warns(
                DeprecationWarning, match=r"rammer\.from_onnx, from_torch or from_tensorflow now"
            ) as caught:
                graph = rammer.load(given, **options)
            assert isinstance(graph, rammer.Graph) and graph.types == wanted.types
            assert [w.filename for w in caught] == [__file__]
        with pytest.warns(DeprecationWarning, match=r"load_program is rammer\.load now"):
            rammer.load_program(saved, threads=1).close()

    def test_threads_are_vEUs_of_a_cpu(self, model: Path, saved: Path) -> None:
        how = rammer.CompileOptions(threads=2, tune_seconds=0)
        with rammer.compile(model, "cpu", how=how) as program, rammer.load(saved, threads=1):
            assert program.report().num_veus == 2
        with rammer.Session(model, threads=2, tune_seconds=0) as session:
            session.run(None, {"x": np.zeros((4, 1, 16), np.float32)})
        assert "2 vEUs" in call("show", model, "--threads", "2", "--policy", "sequential", "--tune-seconds", "0").output
        for target, device, text in (("interpreter", None, "the target is 'interpreter'"), ("cpu", 3, "device= is 3")):
            with pytest.raises(InputError, match=f"threads= is 2, and {text}"):
                rammer.compile(model, target, device=device, threads=2)

    def test_a_pipe_is_no_program(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")  # to open it would wait for ever
        with pytest.raises(ArtifactError, match="no plain file"):
            rammer.load(tmp_path / "pipe")
        with pytest.raises(ModelError, match="no plain file"):
            rammer.compile(tmp_path / "pipe")


class TestSavedPrograms:
    def test_bench_times_one_as_it_is(self, saved: Path) -> None:
        text = call("bench", saved, "--seconds", "0.05").output
        assert "round_robin" in text and "lstm" in text
        assert "--policies has no effect" in call("bench", saved, "--policies", "sequential", code=1).output
        assert "--policy has no effect" in call("bench", saved, "--policy", "sequential", code=1).output
        assert "--shape has no effect" in call("bench", saved, "--shape", "x=4x1x16", code=1).output

    def test_show_says_what_it_can_and_cannot_show(self, saved: Path, tmp_path: Path) -> None:
        text = call("show", saved).output
        assert "policy round_robin" in text and "lstm_cell" in text and "vEU" in text
        forms = {"html": "<script", "svg": "<svg", "trace": "traceEvents", "plan": "rprogram 1"}
        call("show", saved, *(part for form in forms for part in (f"--{form}", tmp_path / form)))
        for form, part in forms.items():
            assert part in (tmp_path / form).read_text()
        text = call("show", saved, "--rkernels", tmp_path / "x.txt", code=1).output
        assert "keeps no rKernels" in text and not (tmp_path / "x.txt").exists()


class TestArguments:
    def test_no_policies(self, model: Path) -> None:
        for empty in ("", " , "):
            assert "names no policy" in call("bench", model, "--policies", empty, code=1).output

    @pytest.mark.parametrize(
        ("shapes", "text"),
        [
            ({"x": 8}, "shapes= gives input 'x' 8, which is no list of integers"),
            ({"x": (8.5, 64)}, "no list of integers"),
            ({"x": "8x64"}, "no list of integers"),
            ([(8, 64)], "shapes= is a list"),
            ({"x": (-8, 64)}, "negative extent"),
            ({"x": (8,)}, "rank 1, the model says 2"),
        ],
    )
    def test_shapes_that_are_none(self, shapes: object, text: str) -> None:
        with pytest.raises(ModelError, match=text.replace("(", r"\(")):
            rammer.from_onnx(gemm(), shapes=shapes)  # type: ignore[arg-type]

    def test_constants(self, tmp_path: Path) -> None:
        """The hint of an input that decides shapes can be followed, in Python and on the command line."""
        nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
        ports = [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [6]),
            helper.make_tensor_value_info("shape", TensorProto.INT64, [2]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None]),
        ]
        graph = helper.make_graph(nodes, "reshape", ports[:2], ports[2:])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
        with pytest.raises(ModelError) as caught:
            rammer.compile(tmp_path / "m.onnx")
        assert "constants={'shape': …}" in caught.value.hint
        with rammer.compile(tmp_path / "m.onnx", constants={"shape": np.array([2, 3])}, tune_seconds=0) as program:
            assert program(np.arange(6, dtype=np.float32)).shape == (2, 3)
        np.save(tmp_path / "shape.npy", np.array([3, 2]))
        assert "3×2" in call("run", tmp_path / "m.onnx", "--constant", f"shape={tmp_path / 'shape.npy'}").output
        with pytest.raises(ModelError, match="constants= is a list"):
            rammer.compile(tmp_path / "m.onnx", constants=[1])  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is kept by Linux")
def test_reading_a_model_takes_the_memory_of_its_size(tmp_path: Path) -> None:
    """No bound is reserved that an untrusted file might reach: 15 KB have room in 2 GB."""
    onnx.save(gemm(8), tmp_path / "m.onnx")
    script = f"import rammer; print(rammer.from_onnx({str(tmp_path / 'm.onnx')!r}).outputs)"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # threads of others reserve memory, too
    done = subprocess.run([sys.executable, "-c", script], preexec_fn=limit, env=environment, capture_output=True)
    assert done.returncode == 0 and b"y" in done.stdout, done.stderr.decode()


def test_a_keyword_that_load_does_not_know_is_named() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'thread'"):
        rammer.load("program.rammer", thread=2)
