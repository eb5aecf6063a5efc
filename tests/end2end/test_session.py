"""Sessions: one model for inputs of any admissible shape, and for inputs that decide shapes."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import rammer
from rammer.errors import InputError, ModelError
from rammer.runtime.state import checked_pairs

F32 = np.float32


def network(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], **weights: Any) -> ModelProto:
    """Inputs and outputs: name -> (element type, shape); a shape of None is a list of tensors."""

    def port(name: str, kind: int, shape: list[Any] | None) -> Any:
        if shape is None:
            return helper.make_tensor_sequence_value_info(name, kind, None)
        return helper.make_tensor_value_info(name, kind, shape)

    graph = helper.make_graph(
        nodes,
        "network",
        [port(name, *kind) for name, kind in inputs.items()],
        [port(name, *kind) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def dense() -> ModelProto:
    weights = np.random.default_rng(0).standard_normal((5, 3)).astype(F32)
    nodes = [node("MatMul", "x w", "h"), node("Add", "h b", "s"), node("Relu", "s", "y")]
    ports = {"x": (TensorProto.FLOAT, ["batch", 5]), "b": (TensorProto.FLOAT, ["batch", 3])}
    return network(nodes, ports, {"y": (TensorProto.FLOAT, ["batch", 3])}, w=weights)


def feeds(batch: int, seed: int = 1) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((batch, 5)).astype(F32), "b": rng.standard_normal((batch, 3)).astype(F32)}


def session(model: ModelProto, **options: Any) -> rammer.Session:
    return rammer.Session(model, "cpu", device=2, tune_seconds=0, **options)


def test_shapes_change_between_runs() -> None:
    meaning = ReferenceEvaluator(dense())
    with session(dense()) as s:
        for batch in (1, 7, 1, 2, 7, 7):
            given = feeds(batch)
            np.testing.assert_allclose(s.run(None, given)[0], meaning.run(None, given)[0], rtol=1e-5, atol=1e-6)
        report = s.report()
        assert (report.hits, report.misses, report.evictions) == (3, 3, 0)
        assert report.programs[-1][:2] == ("x: 7×5, b: 7×3", 3)
        assert report.compile_s > 0 and "3 hits, 3 misses" in str(report)


def test_the_interface_is_that_of_onnx_runtime() -> None:
    with session(dense()) as s:
        assert [(p.name, p.shape, p.type) for p in s.get_inputs()] == [
            ("x", ["batch", 5], "tensor(float)"),
            ("b", ["batch", 3], "tensor(float)"),
        ]
        assert [(p.name, p.shape) for p in s.get_outputs()] == [("y", ["batch", 3])]
        given = feeds(2)
        (first,) = s.run(None, given)
        (second,) = s.run(output_names=["y"], input_feed=given)
        for same in (second, s.run(given)["y"], s(**given), s(*given.values())):
            np.testing.assert_array_equal(first, same)
        assert "batch" in repr(s) and "1 program>" in repr(s)
    with session(dense(), dims={"batch": 4}) as s:
        assert s.get_inputs()[0].shape == [4, 5]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.zeros((2, 6), F32)}, r"'x': axis 1 is 6, the model takes \[batch, 5\]"),
        ({"x": np.zeros((3, 5), F32)}, r"'b': axis 0 is 2, the model takes \[batch, 3\], where 'batch' is 3"),
        ({"x": np.zeros(5, F32)}, "rank 1"),
        ({"x": np.zeros((2, 5))}, r"float64, the model takes float32\n  hint: convert it with .astype\('float32'\)"),
        ({"z": np.zeros(1, F32)}, "no input named 'z'"),
        ({"x": None}, "'x' is None"),
    ],
)
def test_inputs_that_the_model_does_not_admit(changes: dict[str, Any], message: str) -> None:
    with session(dense()) as s, pytest.raises(InputError, match=message):
        s.run(None, feeds(2) | changes)


def test_wrong_options() -> None:
    with pytest.raises(InputError, match="dims= names 'bath'"):
        session(dense(), dims={"bath": 2})
    with pytest.raises(InputError, match="no output named 'z'"), session(dense()) as s:
        s.run(["z"], feeds(1))
    with pytest.raises(InputError, match="closed"):
        s.run(None, feeds(1))
    with pytest.raises(InputError, match="at least one"):
        session(dense(), max_programs=0)
    with pytest.raises(InputError, match="state= names 'h', which is no output"):
        session(dense(), state={"h": "x"})


def test_a_bounded_number_of_programs_is_kept() -> None:
    with session(dense(), max_programs=2) as s:
        for batch in (1, 2, 1, 3, 1, 2):  # 3 puts 2 out, as 1 was used later; then 2 puts 3 out
            s.run(None, feeds(batch))
        report = s.report()
        assert (report.hits, report.misses, report.evictions) == (2, 4, 2)
        assert [text for text, _, _ in report.programs] == ["x: 1×5, b: 1×3", "x: 2×5, b: 2×3"]


def test_warm_compiles_ahead() -> None:
    seen: list[tuple[str, int, int]] = []
    with session(dense()) as s:
        assert s.warm([{"batch": 1}, {"x": (2, 5), "b": (2, 3)}]).result() == 2
        ahead = s.warm([{"batch": 2}, {"batch": 3}], background=True, progress=lambda *state: seen.append(state))
        assert ahead.result() == 1
        assert seen == [("programs", 0, 2), ("programs", 1, 2), ("programs", 2, 2)]
        for batch in (1, 2, 3):
            s.run(None, feeds(batch))
        assert (s.report().misses, s.report().compiled_ahead) == (0, 3)
        with pytest.raises(InputError, match="leaves dimension 'batch' of 'b' open"):
            s.warm([{"x": (2, 5)}])
        with pytest.raises(InputError, match="no input named 'bath'"):
            s.warm([{"bath": 2}])


def test_inputs_that_decide_shapes() -> None:
    """Reshape's shape and Compress-like masks: other values are other programs."""
    nodes = [node("Reshape", "x shape", "y"), node("ReduceSum", "x axes", "z", keepdims=0)]
    ports = {
        "x": (TensorProto.FLOAT, ["n", 4]),
        "shape": (TensorProto.INT64, ["r"]),
        "axes": (TensorProto.INT64, [1]),
    }
    model = network(nodes, ports, {"y": (TensorProto.FLOAT, ["a", "b"]), "z": (TensorProto.FLOAT, ["c"])})
    x = np.arange(24, dtype=F32).reshape(6, 4)
    with session(model) as s:
        for shape, axis in (((3, 8), 0), ((8, -1), 1), ((3, 8), 0), ((3, 8), 1)):
            y, z = s.run(None, {"x": x, "shape": np.array(shape), "axes": np.array([axis])})
            np.testing.assert_array_equal(y, x.reshape(shape))
            np.testing.assert_array_equal(z, x.sum(axis))
        assert (s.report().hits, s.report().misses) == (1, 3)
        assert s.warm([{"n": 6, "shape": np.array([2, 12]), "axes": np.array([0])}]).result() == 1
        s.run(None, {"x": x, "shape": np.array([2, 12]), "axes": np.array([0])})
        assert s.report().misses == 3


def test_signatures_that_were_seen_are_run_at_once() -> None:
    """The second call of a signature is a call of its program: right for other values, and errors stay."""
    nodes = [node("ReduceSum", "x axes", "z", keepdims=0), node("Neg", "x", "y")]
    ports = {"x": (TensorProto.FLOAT, ["n", 4]), "axes": (TensorProto.INT64, [1])}
    model = network(nodes, ports, {"z": (TensorProto.FLOAT, ["c"]), "y": (TensorProto.FLOAT, ["n", 4])})
    random = np.random.default_rng(3)
    with session(model, max_programs=3) as s:
        kept = None
        for n, axis in ((5, 0), (5, 1), (75, 0), (5, 0), (5, 1), (75, 0), (75, 0)):
            x, axes = random.standard_normal((n, 4)).astype(F32), np.array([axis])
            z, y = s.run(None, {"x": x, "axes": axes})
            np.testing.assert_allclose(z, x.sum(axis), rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(y, -x)
            assert kept is None or not np.shares_memory(kept, y)
            kept = y
        assert (s.report().hits, s.report().misses) == (4, 3) and len(s._seen._seen) == 3
        x, axes = random.standard_normal((4, 5)).astype(F32).T, np.array([1, 9])[:1]
        for given in ({"x": x, "axes": axes}, {"axes": axes, "x": x.tolist()}, {"x": x, "axes": [1]}):
            np.testing.assert_allclose(s.run(["z"], given)[0], x.sum(1), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(s.run("y", {"x": x, "axes": axes})[0], -x)
        for wrong, message in (
            ({"x": x}, "missing inputs: axes"),
            ({"x": x, "axes": axes, "q": x}, "no input named 'q'"),
        ):
            with pytest.raises(InputError, match=message):
                s.run(None, wrong)
        with pytest.raises(InputError, match="float64, the model takes float32"):
            s.run(None, {"x": x.astype(np.float64), "axes": axes})
        s.run(None, {"x": np.ones((2, 4), F32), "axes": axes})
        assert next(text for text, _, _ in s.report().programs) == "x: 75×4, axes: 1"
        assert all(not seen.kept.evicted for seen in s._seen._seen)
    with pytest.raises(InputError, match="closed"):
        s.run(None, {"x": np.ones((2, 4), F32), "axes": axes})


def test_a_loop_ends_when_its_condition_says() -> None:
    """The condition is computed from an input: the number of steps is that input's."""
    body = helper.make_graph(
        [
            node("Add", "carried carried", "next"),
            node("ReduceMax", "next", "most", keepdims=0),
            node("Less", "most limit", "again"),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("alive", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", TensorProto.FLOAT, [3]),
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [3]),
        ],
    )
    model = network(
        [helper.make_node("Loop", ["", "", "x"], ["y"], body=body)],
        {"x": (TensorProto.FLOAT, [3]), "limit": (TensorProto.FLOAT, [])},
        {"y": (TensorProto.FLOAT, [3])},
    )
    x = np.array([1, 2, 3], F32)
    with session(model) as s:
        for limit, factor in ((5.0, 2), (20.0, 8), (5.0, 2)):
            np.testing.assert_array_equal(s(x=x, limit=limit), x * factor)


def test_lists_and_optional_values_go_in_and_come_out() -> None:
    nodes = [
        node("SequenceInsert", "xs x", "more"),
        node("SequenceAt", "more last", "tail"),
        node("Relu", "tail", "y"),
    ]
    model = network(
        nodes,
        {"xs": (TensorProto.FLOAT, None), "x": (TensorProto.FLOAT, ["n"])},
        {"more": (TensorProto.FLOAT, None), "y": (TensorProto.FLOAT, ["n"])},
        last=np.array(-1),
    )
    parts = [np.array([1, -2], F32), np.array([], F32), np.array([[3.0]], F32)]
    x = np.array([-1, 5, 7], F32)
    with session(model) as s:
        assert s.get_inputs()[0].type == "seq(tensor(float))"
        for given in (parts, [], parts[:1]):
            more, y = s.run(None, {"xs": given, "x": x})
            assert len(more) == len(given) + 1
            for got, wanted in zip(more, [*given, x], strict=True):
                np.testing.assert_array_equal(got, wanted)
            np.testing.assert_array_equal(y, np.maximum(x, 0))
        with pytest.raises(InputError, match="'xs' is a ndarray"):
            s.run(None, {"xs": x, "x": x})
    with pytest.raises(ModelError, match="'xs' is a list"):
        rammer.compile(model, dims={"n": 3})


def test_an_optional_input_may_be_missing() -> None:
    has = helper.make_graph([node("Identity", "x", "a")], "then", [], [helper.make_tensor_value_info("a", 1, None)])
    no = helper.make_graph([node("Neg", "z", "a")], "else", [], [helper.make_tensor_value_info("a", 1, None)])
    graph = helper.make_graph(
        [node("OptionalHasElement", "x", "c"), helper.make_node("If", ["c"], ["y"], then_branch=has, else_branch=no)],
        "network",
        [
            helper.make_value_info("x", helper.make_optional_type_proto(helper.make_tensor_type_proto(1, [2]))),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, [2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    x, z = np.array([1, 2], F32), np.array([3, 4], F32)
    with session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])) as s:
        np.testing.assert_array_equal(s(x=x, z=z), x)
        np.testing.assert_array_equal(s(x=None, z=z), -z)
        np.testing.assert_array_equal(s(z=z), -z)


def test_sessions_are_safe_to_call_from_several_threads() -> None:
    """More signatures than are kept: programs are put out while others run them."""
    meaning = ReferenceEvaluator(dense())
    wanted = {batch: meaning.run(None, feeds(batch))[0] for batch in (1, 2, 3)}
    wrong: list[BaseException] = []
    with session(dense(), max_programs=2) as s:

        def work(first: int) -> None:
            try:
                for n in range(8):
                    batch = (first + n) % 3 + 1
                    np.testing.assert_allclose(s.run(None, feeds(batch))[0], wanted[batch], rtol=1e-5, atol=1e-6)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        report = s.report()
    assert not wrong
    assert report.hits + report.misses == 32 and len(report.programs) <= 2


def counter(rows: Any = "n") -> ModelProto:
    """h_out = h_in + x, y = -h_out; a second state doubles."""
    nodes = [node("Add", "x h_in", "h_out"), node("Neg", "h_out", "y"), node("Add", "c_in c_in", "c_out")]
    kind = (TensorProto.FLOAT, [rows])
    return network(nodes, {"x": kind, "h_in": kind, "c_in": kind}, {"y": kind, "h_out": kind, "c_out": kind})


PAIRS = {"h_out": "h_in", "c_out": "c_in"}


@pytest.mark.parametrize("how", ["session", "program", "saved", "interpreter"])
@pytest.mark.parametrize("rows", [3, 75, 640])
def test_state_stays_inside(how: str, rows: int, tmp_path: Path) -> None:
    one = np.ones(rows, F32)
    made: rammer.Session | rammer.Program
    if how == "session":
        made = session(counter(), state=PAIRS)
    else:
        target = "interpreter" if how == "interpreter" else "cpu"
        made = rammer.compile(counter(rows), target, state=True, device=2, tune_seconds=0)
        assert made.state_pairs == PAIRS
    if how == "saved":
        made.save(tmp_path / "p.rammer")  # type: ignore[union-attr]
        made = rammer.load(tmp_path / "p.rammer")
    with made as s:
        for total in (1, 2, 3):  # from zeros on
            np.testing.assert_array_equal(s(one), -total * one)
            s.reset(h_in=total * one)
        assert s.run({"x": one}).keys() == {"y"}  # nobody asked for the state
        s.reset(h_in=10 * one, c_in=one)
        for n in (1, 2, 3):
            y, h, c = s.run(["y", "h_out", "c_out"], {"x": one})
            for found, wanted in ((y, -10 - n), (h, 10 + n), (c, 2**n)):
                np.testing.assert_array_equal(found, wanted * one)
            h[:] = c[:] = 99  # the caller's own
        other = s.stream()
        np.testing.assert_array_equal(other(one), -one)
        np.testing.assert_array_equal(s(one), -14 * one)
        given = 5 * one
        np.testing.assert_array_equal(s.run(["h_out"], {"x": one, "h_in": given})[0], 6 * one)
        np.testing.assert_array_equal(s.run(["h_out"], {"x": one})[0], 7 * one)
        np.testing.assert_array_equal(given, 5 * one)
        np.testing.assert_array_equal(other(x=one), -2 * one)
        np.testing.assert_array_equal(other.state()["h_in"], 2 * one)
        np.testing.assert_array_equal(s.state()["h_in"], 7 * one)
        with pytest.raises(InputError, match="reset names 'h'"):
            s.reset(h=one)
        with pytest.raises(InputError, match="missing inputs: x"):
            s.run({})


def test_state_is_not_copied() -> None:
    """It is read where the last run has written it: two places take turns."""
    seen = []
    with rammer.compile(counter(75), "cpu", state=PAIRS, device=2, tune_seconds=0) as program:
        executable: Any = program.executable
        run_bound = executable.run_bound

        def watched(inputs: Any, places: Any, outputs: Any) -> Any:
            seen.append({name: array.ctypes.data for name, array in places.items()})
            assert inputs.keys() == {"x"} and executable._bindings.keys() >= places.keys()
            return run_bound(inputs, places, outputs)

        executable.run_bound = watched
        for _ in range(4):
            program(np.ones(75, F32))
    for before, after in pairwise(seen):
        assert (after["h_in"], after["c_in"]) == (before["h_out"], before["c_out"])
    assert len({places["h_in"] for places in seen}) == 2


def test_streams_run_from_several_threads() -> None:
    with session(counter(), state=PAIRS) as s:
        results: dict[int, Any] = {}

        def work(number: int) -> None:
            stream = s.stream()
            results[number] = [stream(np.full(29, number, F32))[0] for _ in range(20)]

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {n: [-n * step for step in range(1, 21)] for n in range(4)}
        assert s.report().misses == 1


def test_an_lstm_keeps_its_state() -> None:
    """Pieces of a sequence give what the whole of it does."""
    hidden, batch = 29, 3
    rng = np.random.default_rng(3)
    weights = {"w": rng.standard_normal((1, 4 * hidden, 5)), "r": rng.standard_normal((1, 4 * hidden, hidden)) / 5}
    lstm = node("LSTM", "x w r", "y y_h y_c", hidden_size=hidden)
    lstm.input.extend(["", "", "initial_h", "initial_c"])
    state = (TensorProto.FLOAT, [1, batch, hidden])
    ports = {"x": (TensorProto.FLOAT, ["t", batch, 5]), "initial_h": state, "initial_c": state}
    outputs = {"y": (TensorProto.FLOAT, ["t", 1, batch, hidden]), "y_h": state, "y_c": state}
    model = network([lstm], ports, outputs, **{n: w.astype(F32) for n, w in weights.items()})
    x = rng.standard_normal((12, batch, 5)).astype(F32)
    zeros = np.zeros(state[1], F32)
    wanted = ReferenceEvaluator(model).run(["y"], {"x": x, "initial_h": zeros, "initial_c": zeros})[0]
    with session(model, state=True) as s:
        found = [s.run(["y"], {"x": x[begin:end]})[0] for begin, end in ((0, 5), (5, 7), (7, 12))]
    np.testing.assert_allclose(np.concatenate(found), wanted, rtol=1e-4, atol=1e-5)


def test_a_cache_that_grows_is_state() -> None:
    """Its shape changes with every run, so each compiles; a cache of fixed size stays inside."""
    kind = (TensorProto.FLOAT, ["past", 2])
    model = network(
        [node("Concat", "past_kv x", "present_kv", axis=0), node("ReduceSum", "present_kv", "y", keepdims=0)],
        {"past_kv": kind, "x": (TensorProto.FLOAT, [1, 2])},
        {"y": (TensorProto.FLOAT, []), "present_kv": (TensorProto.FLOAT, ["all", 2])},
    )
    with session(model, state={"present_kv": "past_kv"}) as s:
        s.reset(past_kv=np.zeros((0, 2), F32))
        assert [float(s(np.ones((1, 2), F32))) for _ in range(3)] == [2, 4, 6]
        assert s.state()["past_kv"].shape == (3, 2)
    with pytest.raises(InputError, match=r"makes 'present_kv', .* the next 'past_kv'(.|\n)*rammer.Session"):
        rammer.compile(model, "cpu", dims={"past": 4}, state={"present_kv": "past_kv"})


def test_state_of_both_kinds() -> None:
    """One keeps its shape, and stays in the program's memory; the other one grows, and is compiled for each length."""
    kind, fixed = (TensorProto.FLOAT, ["past", 2]), (TensorProto.FLOAT, [3])
    model = network(
        [node("Concat", "past_kv x", "present_kv", axis=0), node("Add", "h_in c", "h_out"), node("Neg", "h_out", "y")],
        {"past_kv": kind, "x": (TensorProto.FLOAT, [1, 2]), "h_in": fixed},
        {"y": fixed, "present_kv": (TensorProto.FLOAT, ["all", 2]), "h_out": fixed},
        c=np.arange(3, dtype=F32),
    )
    with session(model, state={"present_kv": "past_kv", "h_out": "h_in"}) as s:
        s.reset(past_kv=np.zeros((0, 2), F32))
        for n in range(1, 5):
            x = np.full((1, 2), n, F32)
            y = s(x)
            np.testing.assert_array_equal(y, -n * np.arange(3))
            assert s.state()["past_kv"][:, 0].tolist() == list(range(1, n + 1))
            np.testing.assert_array_equal(s.state()["h_in"], n * np.arange(3))
            if n == 2:
                s.reset(past_kv=s.state()["past_kv"], h_in=s.state()["h_in"])


def test_a_cache_of_fixed_size_is_written_where_it_lies() -> None:
    """One program for all steps, and two sequences that grow beside each other."""
    batch, heads, length, width = 3, 2, 29, 16
    shape = f"float[{batch}, {heads}, {length}, {width}]"
    text = f"""<ir_version: 10, opset_import: ["" : 24]>
        decode ({shape} past_kv, float[{batch}, {heads}, 1, {width}] new, int64[{batch}] at)
            => (float[{batch}, {heads}, {width}] y, {shape} present_kv) {{
          present_kv = TensorScatter(past_kv, new, at)
          axes = Constant <value_ints = [2]> ()
          y = ReduceSum <keepdims = 0> (present_kv, axes)
        }}"""
    random = np.random.default_rng(8)
    with rammer.compile(onnx.parser.parse_model(text), "cpu", state=True, device=2, tune_seconds=0) as program:
        streams = [(program.stream(), np.zeros((batch, heads, length, width), F32)) for _ in range(2)]
        for step in range(length):
            for stream, cache in streams:
                new = random.standard_normal((batch, heads, 1, width)).astype(F32)
                cache[:, :, step : step + 1] = new
                y = stream(new=new, at=np.full(batch, step))
                np.testing.assert_allclose(y, cache.sum(2), rtol=1e-4, atol=1e-5)
        for stream, cache in streams:
            np.testing.assert_array_equal(stream.state()["past_kv"], cache)


def test_pairs_are_found_by_name_where_only_one_fits() -> None:
    kind, other = (1, (2, 3)), (1, (4,))
    for inputs, outputs, pairs in (
        (["past_key_values.0.key", "x"], ["logits", "present.0.key"], {"present.0.key": "past_key_values.0.key"}),
        (["h0", "c0"], ["out", "hn", "cn"], {"hn": "h0", "cn": "c0"}),
        (["stateIn"], ["stateOut"], {"stateOut": "stateIn"}),
        (["initial_h"], ["Y_h", "Y"], {"Y_h": "initial_h"}),
        (["h_in"], ["h_out", "new_h"], None),  # two would fit
        (["x"], ["y"], None),
        (["h"], ["h_next"], {"h_next": "h"}),
    ):
        types = [dict.fromkeys(names, kind) for names in (inputs, outputs)]
        if pairs is None:
            with pytest.raises(InputError, match="state=True finds no pair"):
                checked_pairs(True, *types)
        else:
            assert checked_pairs(True, *types) == pairs
    with pytest.raises(InputError, match="finds no pair"):
        checked_pairs(True, {"h_in": kind}, {"h_out": other})
    with pytest.raises(InputError, match="names an input twice"):
        checked_pairs({"a": "x", "b": "x"}, {"x": kind}, {"a": kind, "b": kind})


def test_buckets_fill_a_dimension_up() -> None:
    meaning = ReferenceEvaluator(dense())
    with session(dense(), buckets={"batch": [8, 2]}) as s:
        for batch in (1, 2, 3, 8, 7, 9):
            given = feeds(batch)
            np.testing.assert_allclose(s.run(None, given)[0], meaning.run(None, given)[0], rtol=1e-5, atol=1e-6)
        report = s.report()
        assert [text for text, _, _ in report.programs] == ["x: 2×5, b: 2×3", "x: 8×5, b: 8×3", "x: 9×5, b: 9×3"]
        assert (report.hits, report.misses) == (3, 3)
        assert report.padding == pytest.approx(1 - 30 / 37)
    with pytest.raises(InputError, match="buckets= names 'bath'"):
        session(dense(), buckets={"bath": [1]})
    with pytest.raises(InputError, match="buckets= gives 'batch'"):
        session(dense(), buckets={"batch": []})


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_buckets_fill_the_batch_of_a_recurrent_network(op: str, gates: int) -> None:
    """Rows of a batch never meet."""
    rng, hidden = np.random.default_rng(4), 24
    shapes = {"w": (1, gates * hidden, 10), "r": (1, gates * hidden, hidden), "v": (hidden, 3)}
    weights = {name: (rng.standard_normal(shape) / 5).astype(F32) for name, shape in shapes.items()}
    nodes = [node(op, "x w r", "h", hidden_size=hidden), node("MatMul", "h v", "y")]
    ports = {"x": (TensorProto.FLOAT, ["seq", "batch", 10])}
    model = network(nodes, ports, {"y": (TensorProto.FLOAT, None)}, **weights)
    model.graph.output[0].type.ClearField("sequence_type")
    meaning = ReferenceEvaluator(model)
    with rammer.Session(model, "interpreter", buckets={"batch": [4]}) as s:
        for batch in (1, 3, 4):
            x = rng.standard_normal((5, batch, 10)).astype(F32)
            np.testing.assert_allclose(s.run(None, {"x": x})[0], meaning.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)
        assert s.report().misses == 1


def test_buckets_are_refused_where_padding_matters() -> None:
    kind = (TensorProto.FLOAT, ["n"])
    model = network([helper.make_node("ReduceMean", ["x"], ["y"], name="middle")], {"x": kind}, {"y": kind})
    with session(model, buckets={"n": [4]}) as s:
        np.testing.assert_allclose(s(x=[1.0, 1.0, 1.0, 3.0]), [1.5])
        with pytest.raises(ModelError, match="'middle': its results would depend on padding"):
            s(x=[1.0, 1.0, 1.0])


def attention(heads: int = 2, width: int = 8) -> ModelProto:
    """A layer of self-attention with a mask for padding of its own, the mean over what that leaves, and a table."""
    shapes = {"wq": (width, width), "wk": (width, width), "wv": (width, width), "table": (40, width)}
    random = np.random.default_rng(5)
    weights = {name: random.standard_normal(shape).astype(F32) for name, shape in shapes.items()}
    sizes = {"cut": np.array([0, 0, heads, width // heads]), "joined": np.array([0, 0, width])}
    numbers = {"least": F32(-1e4), "one": F32(1), "axis": np.array([1]), "axes": np.array([1, 2])}
    nodes = [node("Gather", "table ids", "x")]
    for part in "qkv":
        perm = [0, 2, 3, 1] if part == "k" else [0, 2, 1, 3]
        nodes += [node("MatMul", f"x w{part}", f"{part}1"), node("Reshape", f"{part}1 cut", f"{part}2")]
        nodes += [node("Transpose", f"{part}2", part, perm=perm)]
    nodes += [
        node("Unsqueeze", "given axes", "wide"),
        node("Sub", "one wide", "off"),
        node("Mul", "off least", "far"),
        node("MatMul", "q k", "scores"),
        node("Add", "scores far", "shifted"),
        node("Softmax", "shifted", "shares", axis=-1),
        node("MatMul", "shares v", "mixed"),
        node("Transpose", "mixed", "back", perm=[0, 2, 1, 3]),
        node("Reshape", "back joined", "y"),
        node("Unsqueeze", "given last", "weights"),
        node("Mul", "y weights", "counted"),
        node("ReduceSum", "counted axis", "total", keepdims=0),
        node("ReduceSum", "given axis", "count", keepdims=1),
        node("Div", "total count", "pooled"),
    ]
    ports = {"ids": (TensorProto.INT64, ["batch", "seq"]), "given": (TensorProto.FLOAT, ["batch", "seq"])}
    outputs = {"y": (TensorProto.FLOAT, ["batch", "seq", width]), "pooled": (TensorProto.FLOAT, ["batch", width])}
    return network(nodes, ports, outputs, **weights, **sizes, **numbers, last=np.array([2]))


def test_attention_is_masked_in_buckets() -> None:
    """One program for each bucket, exact also where every key is masked away, and whatever lies in padding."""
    model, random = attention(), np.random.default_rng(6)
    meaning = ReferenceEvaluator(model)
    with session(model, buckets={"seq": [8, 32], "batch": [4]}) as s:
        assert s.warm([{"seq": 8, "batch": 4}]).result() == 1
        for batch, seq in ((3, 5), (4, 8), (1, 1), (2, 29), (4, 32), (3, 8), (4, 7), (5, 6)):
            given = (random.random((batch, seq)) < 0.8).astype(F32)
            given[:, 0] = 1
            given[0] = 1
            feed = {"ids": random.integers(0, 40, (batch, seq)), "given": given}
            for found, wanted in zip(s.run(None, feed), meaning.run(None, feed), strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        texts = [text for text, _, _ in s.report().programs]
        assert sorted(texts) == [f"ids: {e}, given: {e}" for e in ("4×32", "4×8", "5×8")]


def test_a_closed_session_of_one_node_refuses_runs() -> None:
    """Such nodes run without a program once a call has shown that."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 18]>
        places (bool[N] x) => (int64[1, M] y) { y = NonZero (x) }""")
    session = rammer.Session(model, "interpreter")
    for given in ([True, False, True], [False, True]):
        (found,) = session.run(None, {"x": np.array(given)})
        np.testing.assert_array_equal(found, [np.flatnonzero(given)])
    session.close()
    with pytest.raises(InputError, match="closed"):
        session.run(None, {"x": np.array([True])})
