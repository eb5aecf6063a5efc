"""What users of ONNX Runtime's InferenceSession write, on a session of rammer; held against ONNX Runtime itself."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import rammer
from rammer.errors import DeviceError, InputError, RammerError

F32 = np.float32
TEXT = """<ir_version: 10, opset_import: ["" : 18], producer_name: "me", domain: "mine", model_version: 7,
  doc_string: "of a model", metadata_props: ["author": "somebody", "names": "a,b"]>
small (float[n, 5] x, float[n, 3] b) => (float[n, 3] y, float[n] total) {
  axis = Constant <value_ints = [1]> ()
  h = MatMul(x, w)
  y = Add(h, b)
  total = ReduceSum <keepdims = 0> (y, axis)
}"""
CPU = ["CPUExecutionProvider"]


def data() -> bytes:
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.append(onnx.numpy_helper.from_array(draw(5, 3), "w"))
    model.graph.doc_string = "of a graph"
    return bytes(model.SerializeToString())


def draw(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape).astype(F32)


def feeds(n: int) -> dict[str, Any]:
    return {"x": draw(n, 5), "b": draw(n, 3)}


def both(**options: Any) -> tuple[rammer.Session, Any]:
    """A session of each."""
    ours = rammer.Session(data(), tune_seconds=0, device=2, providers=CPU, **options)
    return ours, onnxruntime.InferenceSession(data(), providers=CPU)


@pytest.mark.parametrize("n", [1, 29])
def test_all_ways_to_run(n: int) -> None:
    ours, peer = both()
    given = feeds(n)
    with ours:
        for names in (None, [], ["y"], ["total", "y"]):
            found, wanted = ours.run(names, given, None), peer.run(names, given, None)
            assert len(found) == len(wanted)
            for a, b in zip(found, wanted, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        y, total = found[1], found[0]

        results: list[Any] = []
        done = threading.Event()

        def callback(outputs: Any, user_data: Any, error: str) -> None:
            results.append((outputs, user_data, error))
            done.set()

        for asked, message in ((["y"], ""), (["z"], "InputError: no output named 'z'")):
            done.clear()
            ours.run_async(asked, given, callback, "mine")
            assert done.wait(60)
            outputs, mark, error = results.pop()
            assert mark == "mine" and message in error and bool(message) == bool(error) == (not outputs)
            if outputs:
                np.testing.assert_array_equal(outputs[0], y)

        for kind in (rammer.OrtValue, onnxruntime.OrtValue):
            values = {name: kind.ortvalue_from_numpy(array) for name, array in given.items()}
            (value,) = ours.run_with_ort_values(["total"], values)
            np.testing.assert_array_equal(value.numpy(), total)
            np.testing.assert_array_equal(ours.run(None, values)[0], y)
            assert (value.shape(), value.device_name(), value.is_tensor()) == ([n], "cpu", True)


def bind_all(session: Any, kind: Any, given: dict[str, Any]) -> tuple[list[Any], Any, Any]:
    """Every way to bind: outputs, and the memory that two of them were put into."""
    binding = session.io_binding()
    binding.bind_cpu_input("x", given["x"])
    b = np.ascontiguousarray(given["b"])
    binding.bind_input("b", "cpu", 0, F32, list(b.shape), b.ctypes.data)
    place = np.zeros(given["b"].shape, F32)
    binding.bind_output("y", "cpu", 0, F32, list(place.shape), place.ctypes.data)
    value = kind.ortvalue_from_shape_and_type([len(b)], F32)
    binding.bind_ortvalue_output("total", value)
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    found = [*binding.copy_outputs_to_cpu(), *(v.numpy() for v in binding.get_outputs())]
    binding.clear_binding_outputs()
    binding.bind_output("total")
    binding.bind_ortvalue_input("b", kind.ortvalue_from_numpy(b))
    session.run_with_iobinding(binding)
    return [*found, *binding.copy_outputs_to_cpu()], place, value.numpy()


def test_bindings() -> None:
    ours, peer = both()
    with ours:
        for n in (1, 6):
            found, wanted = bind_all(ours, rammer.OrtValue, feeds(n)), bind_all(peer, onnxruntime.OrtValue, feeds(n))
            for a, b in zip((*found[0], *found[1:]), (*wanted[0], *wanted[1:]), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        binding = ours.io_binding()
        binding.bind_cpu_input("x", draw(2, 5))
        binding.bind_cpu_input("b", draw(2, 3))
        binding.bind_ortvalue_output("total", rammer.OrtValue.ortvalue_from_shape_and_type([3], F32))
        with pytest.raises(InputError, match=r"output 'total' is float32\[2\], and bound to float32\[3\]"):
            ours.run_with_iobinding(binding)
        with pytest.raises(InputError, match=r"memory of 'cuda'(.|\n)*DLPack"):
            binding.bind_input("x", "cuda", 0, F32, [2, 5], 0)


def test_what_a_session_says_about_itself() -> None:
    ours, peer = both()
    with ours:
        found, wanted = ours.get_modelmeta(), peer.get_modelmeta()
        for name in vars(found):
            assert getattr(found, name) == getattr(wanted, name), name
        assert ours.get_providers() == peer.get_providers() == list(ours.get_provider_options()) == CPU
        assert ours.get_overridable_initializers() == peer.get_overridable_initializers() == []
        for get in ("get_inputs", "get_outputs"):
            sides = [[(p.name, p.shape, p.type) for p in getattr(side, get)()] for side in (ours, peer)]
            assert sides[0] == sides[1]
        assert not hasattr(ours, "no_such_method")
        with pytest.raises(AttributeError, match=r"no 'end_profiling': Program\.profile"):
            ours.end_profiling()


def test_options_of_onnx_runtime() -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with rammer.Session(data(), sess_options=options, providers=CPU, tune_seconds=0) as s:
        np.testing.assert_allclose(s.run(["y"], feeds(2))[0], both()[1].run(["y"], feeds(2))[0], rtol=1e-5, atol=1e-6)
    with rammer.Session(data(), providers=["NoExecutionProvider", *CPU]) as s:
        assert s.get_providers() == CPU
    options.enable_profiling = True
    for changes, message in (
        ({"sess_options": options}, "sess_options has enable_profiling(.|\n)*Program.profile"),
        ({"target": options}, "target is a SessionOptions(.|\n)*sess_options="),
        ({"providers": ["CPUExecutionProvidr"]}, "did you mean 'CPUExecutionProvider'"),
        ({"providers": []}, r"providers= names \(none\)"),
        ({"providers": CPU, "target": "cpu"}, "both given"),
        ({"providers": [("CPUExecutionProvider", {"arena": 1})]}, "has no option 'arena'"),
        ({"providers": CPU, "provider_options": [{"arena": 1}]}, "has no option 'arena'"),
    ):
        with pytest.raises(InputError, match=message):
            rammer.Session(data(), **changes)
    with both()[0] as s, pytest.raises(InputError, match="a run has no options"):
        s.run(None, feeds(1), onnxruntime.RunOptions())  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "nosuch"}, "no vDevice named 'nosuch'"),
        ({"target": "cpu", "policy": "nosuch"}, "no policy named 'nosuch'"),
        ({"target": "cpu", "policy": "wavefront:nosuch=1"}, "has no option 'nosuch'"),
        ({"target": "cpu", "arch": "nosuch"}, "no arch 'nosuch'"),
        ({"target": "interpreter", "precision": "fp4"}, "does not compute in 'fp4'"),
    ],
)
def test_what_does_not_exist_is_said_when_a_session_is_opened(options: dict[str, str], message: str) -> None:
    with pytest.raises(RammerError, match=message):
        rammer.Session(data(), **options)


def test_a_device_that_is_not_here_is_said_when_a_session_is_opened() -> None:
    class Absent:
        @rammer.hookimpl
        def rammer_vdevices(self) -> list[rammer.VDeviceEntry]:
            def refuse(**_: Any) -> Any:
                raise DeviceError("this machine has none")

            return [rammer.VDeviceEntry("absent", open=refuse)]

    registry = rammer.PluginRegistry(third_party=False)
    registry.register(Absent(), "absent")
    with pytest.raises(DeviceError, match="this machine has none"):
        rammer.Session(data(), "absent", registry=registry)


def test_what_describes_a_model_can_be_a_key() -> None:
    with rammer.Session(data(), "interpreter") as s, rammer.Session(data(), "interpreter") as other:
        assert {*s.get_inputs(), *s.get_outputs()} == {*other.get_inputs(), *other.get_outputs()}
        assert len({s.get_modelmeta(), other.get_modelmeta()}) == 1
