"""Records of imported kernels: hostile ones, verification by execution, the store and its commands."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from legacy_kernels import MATMUL, TANH, matmul_data, record, reverse_data, softmax_data, tanh_data, tensor
from rammer_legacy_kernels import store, verify
from rammer_legacy_kernels.nnfusion import read_any
from rammer_legacy_kernels.record import MAX_BYTES, Tile, parse_record, read_record, to_json

from rammer import config
from rammer.cli.commands import main
from rammer.errors import ArtifactError, LoweringError, RammerError


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMMER_KERNELS_DIR", str(tmp_path / "store"))


def without(data: dict[str, Any], name: str) -> dict[str, Any]:
    return {k: v for k, v in data.items() if k != name}


def test_a_record_has_a_canonical_form() -> None:
    first = record(matmul_data())
    again = record(to_json(first))
    assert to_json(again) == to_json(first) and again.digest == first.digest
    other = record(
        matmul_data(name="other", tolerance=1e-3, operator={"kind": "matmul", "inputs": ["input0", "input1"]})
    )
    assert other.key == first.key and other.digest != first.digest, "the key is the operator's alone"
    assert record(matmul_data(48)).key != first.key
    assert record({**matmul_data(), "key": first.key}).key == first.key


def test_the_record_of_the_manual_is_one(tmp_path: Path) -> None:
    manual = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text(encoding="utf-8")
    (tmp_path / "k.json").write_text(manual[manual.index("    {\n") : manual.index("    }\n") + 6])
    (tmp_path / "matmul.cu").write_text(MATMUL)
    assert read_record(tmp_path / "k.json").key == record(matmul_data()).key


def test_reading_executes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        pytest.fail("something is executed")

    for module, name in ((subprocess, "run"), (subprocess, "Popen"), (os, "system"), (verify, "Library")):
        monkeypatch.setattr(module, name, fail)
    path = tmp_path / "k.json"
    path.write_text(json.dumps({**without(tanh_data(), "source"), "file": "k.cu"}))
    (tmp_path / "k.cu").write_text(TANH)
    assert not store.add(read_record(path)).verified
    assert [s.name for s in store.stored_kernels()] == ["tanh3"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"schema": "rammer-kernel/2"}, "schema is 'rammer-kernel/2'"),
        ({"name": "../../evil"}, "no name"),
        ({"name": 3}, "'name' is no str"),
        ({"nmae": "x"}, "unknown entry 'nmae'"),
        ({"verified": True}, "unknown entry 'verified'"),
        ({"key": "0" * 64}, "key is not that of its operator"),
        ({"operator": {"kind": "matnul"}}, "no operator 'matnul'(.|\n)*matmul"),
        ({"operator": {"kind": "matmul", "attrs": {"trans_a": [[[1]]]}}}, "no attribute"),
        ({"operator": {"kind": "matmul", "attrs": {"no": 1}}}, "TypeError"),
        ({"operator": {"kind": "matmul", "attrs": {"trans_a": True}}}, "rows of b"),
        ({"operator": {"kind": "matmul", "inputs": ["input0", "input7"]}}, "no input 'input7'"),
        ({"operator": {"kind": "matmul", "inputs": ["input1", "input0"]}}, "rows of b|in the order"),
        ({"operator": []}, "0 steps"),
        ({"operator": [{"kind": "relu", "inputs": ["input0"]}] * 17}, "17 steps"),
        (
            {
                "operator": [
                    {"kind": "matmul", "inputs": ["input0", "input1"]},
                    {"kind": "softmax", "attrs": {"axis": 1}, "inputs": ["step0"]},
                ]
            },
            "not one operator in a model, but matmul, softmax",
        ),
        ({"inputs": [tensor(40, 50), tensor(50, 0)]}, "no shape"),
        ({"inputs": [tensor(40, 50), tensor(1 << 20, 1 << 20)]}, "elements; at most"),
        ({"inputs": [tensor(40, 50), tensor(50, True)]}, "no shape"),
        ({"inputs": [tensor(40, 50), tensor(50, 24, dtype="float16")]}, "not 'float16'"),
        ({"inputs": [tensor(40, 50, dtype="float64"), tensor(50, 24, dtype="float64")]}, "has elements of float"),
        ({"inputs": [tensor(1)] * 40}, "at most 32"),
        ({"grid": [2, 0]}, "'grid' is not one to three numbers"),
        ({"grid": [1 << 20]}, "'grid' is not"),
        ({"block": [32, 33]}, "'block' is not"),
        ({"block": [16.0, 16]}, "'block' is not"),
        ({"block": [17, 16]}, "__launch_bounds__|threads"),
        ({"arguments": ["input0", "input1", "output1", 40, 24, 50]}, "output1 of parameter 'C' does not exist"),
        ({"arguments": ["input0", "input0", "output0", 40, 24, 50]}, "input0 of parameter 'B' is given twice"),
        ({"arguments": ["input0", "input1", "output0", 40, 24, "x; system()"]}, "the argument"),
        ({"arguments": ["input0", "input1", "output0", 40, 24, 1 << 70]}, "the argument"),
        ({"dynamic_bytes": 16}, "no extern __shared__"),
        ({"dynamic_bytes": -1}, "not in 0"),
        ({"tolerance": 0.5}, "tolerance"),
        ({"syncs": -1}, "'syncs' is -1"),
        ({"tiles": [{"axis": 0, "grid": "y", "step": 16}]}, "count 1 blocks along grid x, which has 2"),
        ({"tiles": [{"axis": 0, "grid": "y", "step": 16}, {"axis": 1, "grid": "x", "step": 8}]}, "hold 640 of 960"),
        ({"tiles": [{"axis": 0, "grid": "y", "step": 16}, {"axis": 0, "grid": "x", "step": 16}]}, "both write"),
        ({"tiles": [{"axis": 5, "grid": "x", "step": 1}, {"axis": 0, "grid": "y", "step": 1}]}, "axis 5"),
        ({"tiles": [{"axis": 0, "grid": "w"}]}, "needs an 'axis'"),
        ({"tiles": [{"axis": 0, "grid": "x", "div": 3}]}, "divides grid x by 3"),
        ({"source": ""}, "either a 'source' or a 'file'"),
        ({"source": "x" * (300 << 10)}, "characters"),
        ({"file": "k.cu"}, "either"),
        ({"source": MATMUL.replace("__syncthreads();", "__syncwarp();", 1)}, "line 16: '__syncwarp'"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_hostile_records_are_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises((ArtifactError, LoweringError), match=text):
        record({**matmul_data(), **changes})


def test_hostile_files_are_refused(tmp_path: Path) -> None:
    for text, message in (
        ("{", "no JSON"),
        ("[]", "no object"),
        ("[" * 100_000, "no JSON"),
        ('{"schema": "rammer-kernel/1", "schema": "rammer-kernel/1"}', "given twice"),
        (json.dumps(matmul_data())[:-1] + ', "tolerance": NaN}', "NaN is no number"),
        (json.dumps(without(matmul_data(), "grid")), "lacks 'grid'"),
    ):
        with pytest.raises(ArtifactError, match=message):
            parse_record(text)
    big, link, here = tmp_path / "big.json", tmp_path / "link.json", tmp_path / "k.json"
    big.write_bytes(b" " * (MAX_BYTES + 1))
    link.symlink_to(big)
    for path, message in ((big, "more than"), (link, "cannot be read"), (tmp_path / "none.json", "cannot be read")):
        with pytest.raises(ArtifactError, match=message):
            read_record(path)
    for file in ("../k.cu", "/etc/passwd", "a/b", ".hidden"):
        here.write_text(json.dumps({**without(tanh_data(), "source"), "file": file}))
        with pytest.raises(ArtifactError, match="no plain name"):
            read_record(here)


def test_damaged_records_raise_nothing_else() -> None:
    """Entries and characters changed at random: a record or an error of ours, always."""
    random = Random(config.integer("RAMMER_SEED") or 0)
    junk: list[Any] = [None, True, -1, 1 << 65, 1.5, "", "x" * 100, [], [[]], {}, {"kind": "conv"}, "input0", [0] * 99]
    for n in range(300):
        data = json.loads(json.dumps((matmul_data(), softmax_data(), tanh_data(), reverse_data())[n % 4]))
        node, key = data, random.choice(list(data))
        while isinstance(node[key], (dict, list)) and node[key] and random.random() < 0.7:
            node = node[key]
            key = random.choice(list(node)) if isinstance(node, dict) else random.randrange(len(node))
        if key == "source":
            at = random.randrange(len(node[key]))
            node[key] = (
                node[key][:at]
                + random.choice(["", "(", "}", ";", "#", "__shared__", "[", "\\\n"])
                + node[key][at + 3 :]
            )
        else:
            node[key] = random.choice(junk)
        try:
            record(data)
        except RammerError:
            continue


@pytest.mark.parametrize(
    ("data", "syncs", "tiles"),
    [
        (matmul_data(), 8, (Tile(0, "y", 16, 3), Tile(1, "x", 16, 2))),
        (softmax_data(6), 4, (Tile(0, "x", 1, 6),)),
        (tanh_data(), 0, (Tile(0, "z", 2, 2), Tile(1, "y", 3, 2), Tile(2, "x", 8, 4))),
        (without(tanh_data(), "tiles"), 0, (Tile(0, "z", 2, 2), Tile(1, "y", 3, 2), Tile(2, "x", 8, 4))),
        (reverse_data(), 1, (Tile(0, "x", 7, 3),)),
    ],
    ids=lambda v: v["name"] if isinstance(v, dict) else "",
)
def test_verification_counts_syncs_and_finds_tiles(data: dict[str, Any], syncs: int, tiles: tuple[Tile, ...]) -> None:
    found = verify.check(record(data))
    assert (found.syncs, found.record.syncs, found.record.tiles) == (syncs, syncs, tiles)
    assert found.max_error < 1e-5 and found.blocks == record(data).num_rtasks


def scale(body: str, **changes: Any) -> dict[str, Any]:
    """y = -x of 64 elements, in blocks of 16."""
    text = f"__global__ void k(float *y, float *x) {{ int i = blockIdx.x * 16 + threadIdx.x; {body} }}"
    data = {
        "schema": "rammer-kernel/1",
        "name": "scale",
        "operator": {"kind": "neg"},
        "inputs": [tensor(64)],
        "grid": [4],
        "block": [16],
        "tiles": [{"axis": 0, "grid": "x", "step": 16}],
        "arguments": ["output0", "input0"],
        "source": text,
    }
    return {**data, **changes}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("y[i] = x[i];", "block 0: output0 differs by"),
        ("if (threadIdx.x) y[i] = -x[i];", "block 0: output0 differs by"),
        ("y[i] = -x[i]; y[(i + 16) % 64] = -x[(i + 16) % 64];", r"writes element \(16,\) of output0, outside"),
        ("y[i] += -x[i];", "output0 differs"),
        ("y[i] = -x[i] + 0 * x[(i + 32) % 64];", "inputs that its tile does not need are NaN"),
        ("y[i] = -x[i]; x[i] = 0;", "block 0 writes to input0"),
        ("y[i] = -x[i]; y[i + 64] = 1;", "block 0 writes outside of tensor 0"),
        ("for (int n = 0; n < blockIdx.x; n++) { __syncthreads(); } y[i] = -x[i];", "its blocks run 0 to 3"),
    ],
)
def test_kernels_that_are_wrong_are_found_out(body: str, text: str) -> None:
    assert verify.check(record(scale("y[i] = -x[i];"))).syncs == 0
    with pytest.raises(ArtifactError, match=f"record 'scale': .*{text}"):
        verify.check(record(scale(body)))


def test_nan_and_infinity_are_values_too() -> None:
    """log of negative numbers; and they must be written, not left as they were."""
    root = {"operator": {"kind": "log"}}
    assert verify.check(record(scale("y[i] = logf(x[i]);", **root))).max_error < 1e-5
    with pytest.raises(ArtifactError, match="output0 differs"):
        verify.check(record(scale("if (x[i] > 0) y[i] = logf(x[i]);", **root)))


def test_declared_syncs_and_tiles_are_checked() -> None:
    good = "y[i] = -x[i];"
    with pytest.raises(ArtifactError, match="declares 3 block syncs, and every thread runs 0"):
        verify.check(record(scale(good, syncs=3)))
    lying = [
        {"axis": 0, "grid": "x", "step": 32, "count": 2},
        {"axis": 0, "grid": "x", "step": 16, "count": 2, "div": 2},
    ]
    with pytest.raises(ArtifactError, match=r"outside of its tile|differs by"):
        verify.check(record(scale(good, tiles=lying)))
    strided = "int j = threadIdx.x * 4 + blockIdx.x; y[j] = -x[j];"
    with pytest.raises(ArtifactError, match=r"cut by no digit|both write|hold"):
        verify.check(record(without(scale(strided), "tiles")))


def test_verification_runs_in_a_process_of_its_own() -> None:
    assert verify.verify(record(scale("y[i] = -x[i];"))).blocks == 4
    with pytest.raises(ArtifactError, match=r"crashed \(signal"):
        verify.verify(record(scale("y[i + 2000000000] = 1;")))
    with pytest.raises(ArtifactError, match="longer than 3 s"):
        verify.verify(record(scale("for (int n = 0; n < 1; n += x[0] > 1e30f) { y[i] = n; }")), seconds=3)
    with pytest.raises(ArtifactError, match="output0 differs"):
        verify.verify(record(scale("y[i] = x[i];")))


def test_the_store_admits_what_it_verified_itself(tmp_path: Path) -> None:
    mine = record(scale("y[i] = -x[i];"))
    assert store.stored_kernels() == [] and not (tmp_path / "store").exists()
    store.add(mine)
    assert [s.verified for s in store.stored_kernels()] == [False]
    store.add(mine, verify.check(mine))
    assert [s.verified for s in store.stored_kernels()] == [True]
    file = tmp_path / "store" / "scale.json"
    file.write_text(file.read_text().replace("-x", "+x"))
    assert not store.find("scale").verified, "what was verified is another text"
    (tmp_path / "store" / "broken.json").write_text("{")
    with pytest.warns(RuntimeWarning, match="broken.json is not used: it is damaged"):
        assert [s.name for s in store.stored_kernels()] == ["scale"]
    (tmp_path / "store" / "broken.json").unlink()
    store.remove("scale")
    with pytest.raises(ArtifactError, match="no imported kernel 'scale'"):
        store.remove("scale")
    (tmp_path / "store").chmod(0o777)
    with pytest.raises(RammerError, match="other users may write"):
        store.stored_kernels()


def test_the_commands(tmp_path: Path) -> None:
    path = tmp_path / "k.json"
    path.write_text(json.dumps(scale("y[i] = -x[i];")))

    def run(*arguments: object) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["kernels", *map(str, arguments)])
        return done.exit_code, " ".join(done.output.split())

    assert run("import", path) == (0, "scale: kept; `rammer kernels verify scale` executes and admits it")
    assert "not verified: not used" in run("list")[1]
    assert run("verify", "scale") == (0, "scale: verified: 4 blocks, 0 block syncs, error 0")
    assert "verified, error 0" in run("list")[1]
    assert run("import", "--verify", path)[1].startswith("scale: verified")
    assert run("remove", "scale")[0] == 0 and run("verify", "scale")[0] == 1
    path.write_text(json.dumps(scale("y[i] = x[i];")))
    assert run("import", "--verify", path)[0] == 1 and "scale" not in run("list")[1].split("folder")[0]


def entry(kind: str, parameters: dict[str, Any], code: str) -> dict[str, Any]:
    return {
        "tvm_func_name": "dot kernel0",
        "op_type": kind,
        "parameters": parameters,
        "code": code,
        "gridDim": [2, 2, 1],
        "blockDim": [16, 16, 1],
    }


def test_kernels_of_the_artifact(tmp_path: Path) -> None:
    """In the interchange form of its database: tiles and syncs are found."""
    text = MATMUL.replace("float *__restrict__ C, int M, int N, int K", "float *__restrict__ C")
    text = text.replace("float acc", "const int M = 32, N = 32, K = 20; float acc").replace("row < M", "row < 32")
    shapes = {"arg0_shape": [32, 20], "arg1_shape": [20, 32], "out_shape": [32, 32]}
    path = tmp_path / "db.json"
    path.write_text(json.dumps([entry("Dot", {**shapes, "transpose_A": False, "transpose_B": False}, text)]))
    ((made,), _) = read_any(path)
    assert made.name.startswith("dot_kernel0_") and made.operation.kind == "matmul"
    assert verify.check(made).syncs == 4
    turned = {"arg0_shape": [32, 20], "arg1_shape": [20, 8], "out_shape": [32, 8], "transpose_B": True}
    path.write_text(json.dumps(entry("Dot", turned, text)))
    ((made,), _) = read_any(path)
    assert [t.shape for t in made.inputs] == [(32, 20), (8, 20)]
    window = {"window_movement_strides": [1, 1], "window_dilation_strides": [1, 1], "padding_below_diff": [1, 1]}
    shapes = {"input_shape": [1, 8, 16, 16], "filter_shape": [4, 8, 3, 3], "output_shape": [1, 4, 16, 16], **window}
    code = "__global__ void c(float *a, float *w, float *o, float *b) { o[threadIdx.x] = a[0] * w[0] + b[0]; }"
    path.write_text(json.dumps(entry("Fused_Convolution_Add_Relu", shapes, code)))
    ((made,), _) = read_any(path)
    assert made.operation.kind == "conv+relu" and made.launch.arguments == ("input0", "input1", "output0", "input2")
    mixed = [entry("Dot", {"arg0_shape": [4, 5]}, code), entry("Fused_Convolution_Add_Relu", shapes, code)]
    path.write_text(json.dumps(mixed))
    (kept, refused) = read_any(path)
    assert len(kept) == len(refused) == 1 and refused[0].__notes__ == [f"kernel 0 of {path}"]
    for changes, message in (
        ({"op_type": "Mystery"}, "does not say what it computes"),
        ({"parameters": {**shapes, "output_shape": [1, 4, 8, 8]}}, "not of shape"),
        ({"parameters": {}}, "no list|no object|no str|lacks"),
        ({"gridDim": "x"}, "'grid' is no list"),
        ({"code": None}, "'source' is no str"),
    ):
        path.write_text(json.dumps({**entry("Fused_Convolution_Add_Relu", shapes, code), **changes}))
        with pytest.raises(ArtifactError, match=message):
            read_any(path)
