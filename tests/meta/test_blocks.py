"""Every block of code in README and docs runs as printed, page by page, and every command line too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import blocks
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/start").glob("*.md"))]
TUTORIAL = "tutorial.md"  # its blocks are the examples, each a script: test_site.py runs them
FOLLOWED = ("lstm.md", "convolution.md")  # test_docs.py runs them
GENERATED = ("measurements.md", "operators.md", "accuracy.md", "gallery.md")  # their commands take hours
HEAD = '<ir_version: 10, opset_import: ["" : 20]>'
MODELS = {  # of which pages speak, by file: a text, and the shapes of random weights
    "model.onnx": (
        """network (float[BATCH, 3, 224, 224] x) => (float[BATCH, 10] y) {
          c = Conv <strides = [8, 8]> (x, filters)
          r = Relu(c)
          p = GlobalAveragePool(r)
          f = Flatten(p)
          y = MatMul(f, w)
        }""",
        {"filters": (8, 3, 8, 8), "w": (8, 10)},
    ),
    "decoder.onnx": (
        """decoder (float[1, 64] x, float[1, 75] h_in) => (float[1, 75] y, float[1, 75] h_out) {
          a = MatMul(x, w)
          b = MatMul(h_in, u)
          s = Add(a, b)
          h_out = Tanh(s)
          y = Relu(h_out)
        }""",
        {"w": (64, 75), "u": (75, 75)},
    ),
    "vad.onnx": (
        """vad (float[1, 64] x, float[1, 29] h) => (float[1, 64] y, float[1, 29] h_out) {
          a = MatMul(x, w)
          s = Add(a, h)
          h_out = Tanh(s)
          y = MatMul(h_out, u)
        }""",
        {"w": (64, 29), "u": (29, 64)},
    ),
    "denoiser.onnx": (
        "denoiser (float[1, 64] x) => (float[1, 64] y) { s = MatMul(x, w)  y = Relu(s) }",
        {"w": (64, 64)},
    ),
    "turn.onnx": ("turn (float[1, 29] x) => (float[1, 5] y) { y = MatMul(x, w) }", {"w": (29, 5)}),
    "classifier.onnx": (
        "classifier (int64[batch, length] ids) => (float[batch, length, 29] logits) { logits = Gather(table, ids) }",
        {"table": (75, 29)},
    ),
}


def write_models(folder: Path) -> None:
    random = np.random.default_rng(0)
    network, weights = MODELS["model.onnx"]
    fixed = {"model.onnx": (network.replace("BATCH", "1"), weights)}
    for file, (text, shapes) in {
        **MODELS,
        **fixed,
        "batched.onnx": (network.replace("BATCH", "batch"), weights),
    }.items():
        model = onnx.parser.parse_model(HEAD + text)
        for name, shape in shapes.items():
            values = (random.standard_normal(shape) / 8).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(values, name))
        onnx.save(model, folder / file)


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if p.name not in (*FOLLOWED, TUTORIAL)],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_a_page_runs_as_printed(page: Path, tmp_path: Path) -> None:
    found = [*blocks.blocks(page)]
    if not found:
        pytest.skip("no block of code")
    write_models(tmp_path)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "RAMMER_TUNE_SECONDS": "0"}
    why = left_out(page, found)
    command = [sys.executable, blocks.__file__, str(page), *(["--parse"] if why else [])]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    if why:
        pytest.skip(f"parsed, and not run: {why}")


def left_out(page: Path, found: list[blocks.Block]) -> str:
    """Say why the blocks of a page cannot run here; "" if they can."""
    if page.name in GENERATED:
        return "its commands take hours"
    if any("import torch" in block.text for block in found) and not find_spec("torch"):
        return "it needs torch"
    backend = any('backend="rammer"' in block.text for block in found)
    if backend and not entry_points(group="torch_dynamo_backends", name="rammer"):
        return "PyTorch finds the backend of an installed rammer-torch only"
    return ""


UNFENCED = (*FOLLOWED, "operators.md", "accuracy.md", "plugin-author.md")  # other tests run or make them


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in UNFENCED], ids=lambda p: str(p.relative_to(ROOT)))
def test_code_is_in_fenced_blocks_of_a_language(page: Path) -> None:
    """Else nobody would run it."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    for line in text.splitlines():
        assert not re.match(r"    (\$ |rammer[. ]|python -m |import |pip install |from \w+ import )", line), line


def test_faults_of_blocks_are_found(tmp_path: Path) -> None:
    """A page whose second block needs the first, and pages with a fault each."""
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```python\nassert x == 1\n```\n```sh\nrammer cache  # shows it\n```\n")
    blocks.run_page(page)
    wrong = {
        "```python\nundefined\n```\n": NameError,
        "```sh\nrammer run absent.onnx\n```\n": AssertionError,
        "```sh\nfrobnicate\n```\n": AssertionError,
        "```sh\npython -m rammer.absent\n```\n": AssertionError,
        "<!-- not run: it has no GPU -->\n```python\n(\n```\n": SyntaxError,
    }
    for text, error in wrong.items():
        page.write_text(text)
        with pytest.raises(error) as found:
            blocks.run_page(page)
        assert "page.md:" in found.value.__notes__[0]
    page.write_text("<!-- not run: it has no GPU -->\n```sh\nrammer run m.onnx --frob\n```\n")
    with pytest.raises(Exception, match="No such option"):
        blocks.run_page(page)
    page.write_text("<!-- not run: it has no GPU -->\n```python\nundefined\n```\n")
    blocks.run_page(page)
