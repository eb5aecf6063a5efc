"""Documentation held to the code: hooks, flags, rules, the design table, the plugin guide, operators followed."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import thresholds
from rammer_testing.new_plugin import KINDS, contents

import rammer
from rammer import config, hookspecs, plugin, testing
from rammer.about import COMPILER, RUNTIME, TESTING, VERSION
from rammer.ir.device import Issue, MemoryLevel, VDeviceSpec
from rammer.ir.listing import print_rkernels
from rammer.ir.verify import kernel
from rammer.plugins import PluginRegistry
from rammer.runtime import artifact
from rammer.vdevice import base
from rammer.vdevice.cpu.runtime import table
from rammer.vdevice.ipu.codegen import build as ipu
from rammer.vdevice.simt.codegen import table as simt

ROOT = Path(__file__).parents[2]
HOOKS = [name for name, f in inspect.getmembers(hookspecs, inspect.isfunction) if name.startswith("rammer_")]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def headings(name: str, level: str = "## ") -> set[str]:
    return {line[len(level) :].strip("` ") for line in read(name).splitlines() if line.startswith(level)}


def test_every_hook_has_its_manual() -> None:
    assert headings("docs/hooks.md") == set(HOOKS)
    for name in HOOKS:
        arguments = ", ".join(inspect.signature(getattr(hookspecs, name)).parameters)
        assert f"`{name}({arguments})" in read("docs/hooks.md")


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_used_and_tested(hook: str) -> None:
    used = [p for p in (ROOT / "rammer").rglob("*.py") if f"def {hook}(" in p.read_text() and p.name != "hookspecs.py"]
    tested = [p for p in (ROOT / "tests").rglob("*.py") if f"def {hook}(" in p.read_text()]
    assert used, f"no built-in plugin implements {hook}"
    assert tested, f"no test implements {hook}"


def test_every_flag_is_documented() -> None:
    assert headings("docs/flags.md") == set(config.FLAGS)


def rows_of(page: str, heading: str) -> list[str]:
    """Return the names in the first column of the first table below a heading."""
    below = read(page).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)`", below, re.M)


@pytest.mark.parametrize("kind", [VDeviceSpec, MemoryLevel, Issue], ids=lambda kind: kind.__name__)
def test_every_field_of_a_spec_is_explained(kind: Any) -> None:
    assert rows_of("docs/vdevice-spec.md", kind.__name__) == [field.name for field in fields(kind)]


def test_every_optional_protocol_is_explained() -> None:
    protocols = {
        n for n, v in vars(base).items() if getattr(v, "_is_protocol", False) and v.__module__ == base.__name__
    }
    assert {*rows_of("docs/plugin-author.md", "What a loaded program may offer")} == protocols - {"Executable"}
    assert protocols < {*plugin.__all__}


def test_every_exception_is_explained() -> None:
    raised = {n for n in rammer.__all__ if isinstance(v := getattr(rammer, n), type) and issubclass(v, BaseException)}
    assert {*rows_of("docs/api.md", "Errors")} == raised | {"DeprecationWarning"}


def test_plugins_need_public_modules_alone() -> None:
    """The packages that new-plugin makes, and so the guides, and the example of a policy."""
    made = {f"{kind}: {file}": text for kind in KINDS for file, text in contents("toy", kind).items()}
    made |= {path.name: path.read_text() for path in (ROOT / "plugins/list-policy").rglob("*.py")}
    for file, text in made.items():
        for node in ast.walk(ast.parse(text)) if file.endswith(".py") else ():
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("rammer."):
                assert node.module in ("rammer.plugin", "rammer.testing"), file
                assert {a.name for a in node.names} <= {*plugin.__all__, *testing.__all__}


def test_the_page_of_versions_says_what_this_release_reads() -> None:
    """A new format or ABI needs a row in docs/versioning.md: the first row is this release."""
    release = ".".join(VERSION.split(".")[:2])
    row = next(line for line in read("docs/versioning.md").splitlines() if line.startswith(f"| {release} |"))
    assert row == f"| {release} | {artifact.FORMAT} | {table.ABI} | {simt.ABI} | {ipu.ABI} | {release} |"
    assert re.search(rf"^## {VERSION} \(", read("CHANGELOG.md"), re.M), "CHANGELOG.md has no section for this version"
    assert f"version: {VERSION}\n" in read("CITATION.cff")


def test_every_policy_and_its_options_are_documented() -> None:
    text = read("docs/policies.md")
    for name, options in PluginRegistry(third_party=False).policy_options().items():
        assert name in text
        for option in options:
            for value in option.values:
                default = " (default)" if value == option.default else ""
                assert f"| `{option.name}={value}`{default} |" in text


def test_every_rule_is_documented() -> None:
    """All rules that any module names in an error or a finding, each in one row; and the names of those of rKernels."""
    rows = re.findall(r"^\| (R\d{3}) \| ([\w -]+) \|", read("docs/semantics.md"), re.M)
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "rammer").rglob("*.py")]
    texts = [n.value for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Constant) and type(n.value) is str]
    assert sorted(number for number, _ in rows) == sorted({text for text in texts if re.fullmatch(r"R\d{3}", text)})
    assert {number: rule.name for number, rule in kernel.RULES.items()}.items() <= dict(rows).items()


def test_design_table_names_real_files() -> None:
    rows = [line for line in read("docs/design.md").splitlines() if line.startswith("| ")]
    files = [f for row in rows for f in re.findall(r"`(rammer/[\w/]+\.(?:py|c))`", row)]
    assert len(files) > 15
    for file in files:
        assert (ROOT / file).exists(), f"docs/design.md names {file}, which does not exist"


def test_the_guides_show_what_new_plugin_makes() -> None:
    device, c_device = contents("toy", "device"), contents("plain_c", "c-device")
    kernels, policy = contents("my_kernels", "kernels"), contents("longest_first", "policy")
    for page, shown in (
        ("docs/plugin-author.md", [*device.values(), c_device["rammer_plain_c.py"], *list(kernels.values())[1:]]),
        ("docs/policies.md", [policy["rammer_longest_first.py"]]),
    ):
        assert sorted(re.findall(r"```(?:python|toml)\n(.*?)```", read(page), re.S)) == sorted(shown)


def test_readme_names_existing_documents() -> None:
    for target in re.findall(r"\]\(([\w/.-]+\.md)\)", read("README.md")):
        assert (ROOT / target).exists(), target


def test_every_benchmark_has_a_row() -> None:
    """benchmarks/README.md lists each module that runs as a program, and nothing else."""
    programs = {"gpu.compile"}
    for path in (ROOT / "benchmarks").rglob("*.py"):
        started_by_others = path.name in ("version.py", "compile.py")
        if re.search(r"^if __name__ ==", path.read_text(), re.M) and not started_by_others:
            programs.add(".".join(path.relative_to(ROOT / "benchmarks").with_suffix("").parts))
    cells = [row.split(" |")[0] for row in read("benchmarks/README.md").splitlines() if row.startswith("| `")]
    named = {command for cell in cells for command in re.findall(r"`([a-z_.]+)[ `]", cell)}
    assert {name.removesuffix(".__main__") for name in programs} == named
    rooms = re.findall(r"^## (.+)$", read("benchmarks/README.md"), re.M)
    assert len(rooms) == len({*rooms})


FOLLOWED = ("docs/lstm.md", "docs/convolution.md")


@pytest.mark.parametrize("page", FOLLOWED)
def test_pages_that_follow_an_operator_name_what_exists(page: str) -> None:
    """`file.py:name`: a file below rammer/ or rammer_viz/ whose path ends so defines the name."""
    named = re.findall(r"`([\w/]+\.py):(\w+)`", read(page))
    assert len(named) > 10
    for file, name in named:
        texts = [p.read_text() for p in ROOT.glob("rammer*/**/*.py") if f"/{p.as_posix()}".endswith(f"/{file}")]
        assert texts, f"{page} names {file}, which does not exist"
        defined = re.compile(rf"^(async )?(def|class) {name}\b|^{name}\b.* = ", re.M)
        assert any(map(defined.search, texts)), f"{page} names {name}, which {file} does not define"


@pytest.mark.parametrize("page", FOLLOWED)
def test_pages_that_follow_an_operator_show_real_graphs_and_expressions(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no machine changes; tilings, texts and times depend on the caches that are there."""
    monkeypatch.chdir(tmp_path)
    text = read(page)
    (model,) = set(re.findall(r"rammer show (\w+\.onnx) --device 2", text))
    commands = re.findall(r'python -c "(.*)"', text) + re.findall(r"```python\n(.*?)```", text, re.S)
    exec(commands[0], {})
    with config.override(RAMMER_DUMP_DIR=str(tmp_path / "dump")):
        program = rammer.compile(model, "cpu", device=2, arch="x86-64-avx2@here", tune_seconds=0)
    with program:
        listed = print_rkernels(program.plan)
    graphs = [file.read_text() for what in ("imported", "graph") for file in tmp_path.glob(f"dump/*.{what}.txt")]
    blocks = [block for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M) if not language]
    assert [block for block in blocks if block.startswith("graph ")] == graphs
    expressions = [block for block in blocks if block.startswith("expression ")]
    assert expressions
    for block in expressions:
        assert block in listed


CHOOSING = ("cost", "kernels", "scheduler", "planner", "passes", "ir")
FACTS = ("ir/device.py", "ir/ops/", "ir/semantics/")  # what a device is, what operators mean, how exact results are


def listed() -> dict[str, set[str]]:
    """Return the names of constants that docs/cost.md lists, by file. A row without files continues the one above."""
    found: dict[str, set[str]] = {}
    files: list[str] = []
    for line in read("docs/cost.md").partition("## Numbers that stay")[2].splitlines():
        if line.startswith("|"):
            files = re.findall(r"`([\w/]+\.py)`", line.split("|")[1]) or files
            for file in files:
                found.setdefault(file, set()).update(re.findall(r"\b_?[A-Z][A-Z0-9_]+\b", line.split("|")[2]))
    return found


def test_every_number_that_chooses_says_its_source() -> None:
    known, package = listed(), ROOT / "rammer"
    files = [path for part in CHOOSING for path in sorted((package / part).rglob("*.py"))]
    found = {path.relative_to(package).as_posix(): thresholds.names(path.read_text(encoding="utf-8")) for path in files}
    unlisted = {file: names - known.get(file, set()) for file, names in found.items() if names - known.get(file, set())}
    assert not unlisted, "constants without a row in docs/cost.md"
    assert known.keys() <= found.keys()
    used = set().union(*found.values())
    assert all(names & found[file] and names <= used for file, names in known.items()), "rows without constants"


def test_no_literal_chooses() -> None:
    for part in CHOOSING:
        for path in sorted((ROOT / "rammer" / part).rglob("*.py")):
            file = path.relative_to(ROOT / "rammer").as_posix()
            found = thresholds.literals(path.read_text(encoding="utf-8")) if not file.startswith(FACTS) else []
            assert not found, f"{file}: line and value {found}: name them, with their source in docs/cost.md"


PLANTED = {
    "a constant that another file has": ("kernels/vectors/chain.py", "", "PLACES = 7"),
    "annotated": ("kernels/tiling.py", "", "NEW_LIMIT: float = 1.37"),
    "private, in a tuple": ("planner/memory.py", "", "_LOW, _HIGH = 3, 9"),
    "of a class": ("scheduler/select.py", "class PriceTable:", "    MOST = 12"),
    "in a pass": ("passes/fusion/regions.py", "", "SECRET = 1.37"),
    "in the IR": ("ir/plan.py", "", "SECRET = {'a': 1.37}"),
    "a factor": ("kernels/vectors/contraction.py", "def cycles", "    width *= 1.29"),
    "a threshold": ("passes/fusion/regions.py", "def fuse(", "    enough = enough if enough > 48 else 1"),
    "a half": ("scheduler/graphturbo/cut.py", "def local_memories", "    room = spec.l2.nbytes / 2"),
    "a bound": ("cost/statics.py", "def streamed_bytes", "    return min(len(graph.operators), 40)"),
    "choices": ("ir/plan.py", "class ExecutionPlan:", "    def steps(self): return [n for n in (16, 4)]"),
    "a default": ("cost/estimate.py", "def arithmetic_us", "    def scaled(us, by=3.5): return us"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_numbers_are_found(name: str) -> None:
    file, after, planted = PLANTED[name]
    lines = (ROOT / "rammer" / file).read_text(encoding="utf-8").splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith(after)) + 1 if after else len(lines)
    while after and not lines[at - 1].endswith(":"):
        at += 1
    source = "\n".join([*lines[:at], planted, *lines[at:]])
    assert thresholds.names(source) - listed().get(file, set()) or thresholds.literals(source)


def test_no_text_installs_the_package_of_another_project() -> None:
    """On the public package index, the name `rammer` belongs to it."""
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "rammer").rglob("*.py")]
    texts += [p for folder in ("benchmarks", "examples", "tests") for p in (ROOT / folder).rglob("*.py")]
    named = {n for p in texts for n in re.findall(r"pip install\s+(?:-\S+\s+)*['\"]?(rammer[\w-]*)", p.read_text())}
    assert named == {COMPILER, RUNTIME, TESTING}
    for kind in KINDS:
        project = tomllib.loads(contents("toy", kind)["pyproject.toml"])["project"]
        assert project["dependencies"] == ["rammer-compiler"]
        assert "rammer" not in project["optional-dependencies"]["test"]


@pytest.mark.parametrize("kind", ["convolution", "LSTM"])
def test_design_names_the_files_that_make_a_text(kind: str, tmp_path: Path) -> None:
    """Every file that the page names on the way from a file to emitted text runs; there are at most 45.

    Its table names all others that run.
    """
    sections = dict(re.findall(r"^## From an? ([\w]+) to text\n(.*?)(?=^## )", read("docs/design.md"), re.M | re.S))
    named = {what: set(re.findall(r"`(rammer/[\w/]+\.py)`", text)) for what, text in sections.items()}
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RAMMER_CHECK": "0"}
    command = [sys.executable, str(Path(__file__).with_name("walk.py")), str(tmp_path), kind]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    ran = {str(Path(file).relative_to(ROOT)) for file in done.stdout.splitlines() if file.startswith(str(ROOT))}
    assert named[kind] and named[kind] <= ran
    assert len(named["convolution"] & ran | named[kind]) <= 45
    rest = re.search(r"^## What else runs\n(.*?)(?=^## )", read("docs/design.md"), re.M | re.S)
    others = {f"rammer/{file}" for file in re.findall(r"`([\w/]+\.py)`", rest[1] if rest else "")}
    assert not [file for file in others if not (ROOT / file).exists()]
    assert not others & (named["convolution"] | named["LSTM"])
    assert {file for file in ran if file.startswith("rammer/")} <= others | named["convolution"] | named["LSTM"]


def test_every_term_is_defined_once() -> None:
    rows = [line.split("|") for line in read("docs/glossary.md").splitlines() if line.startswith("| ")]
    terms = [row[1].strip().lower() for row in rows if row[1].strip() != "term"]
    assert len(terms) > 60 and len(terms) == len(set(terms))
    for row in rows:
        for file in re.findall(r"`(rammer/[\w/]+\.py)`", row[3]):
            assert (ROOT / file).exists(), f"{row[1].strip()}: {file} does not exist"
    for term in ("rOperator", "rTask", "rKernel", "vEU", "rProgram", "barrier-rTask", "wave", "prefetch", "resident"):
        assert term.lower() in terms
