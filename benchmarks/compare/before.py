"""Compare another commit with this checkout: is anything slower, does anything compile longer?

python -m benchmarks.compare.before REV [--models seq2seq_lstm,alexnet:4] [--suite paper] [--seconds 4] [--json F]
    [--resume]
python -m benchmarks.compare.before REV --forms "TopK, 8; GatherElements" --size layer,map [--dtype float32]

Each version compiles with an empty cache; both use one calibration. Each loads its saved program in a process of its
own, since files of two versions may differ in ABI. Both run in turns.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.compare.collect import by_model
from benchmarks.compare.peers import worst_error
from benchmarks.compare.policies import ratio_of_medians
from benchmarks.compare.run import chosen, commit, suite
from benchmarks.compare.worker import TOLERANCE
from benchmarks.models import catalog
from benchmarks.models.store import Arrays, BuiltModel, reuse, stored
from benchmarks.operators import cases
from benchmarks.operators.run import chosen as chosen_forms
from benchmarks.operators.run import onnxruntime_way
from rammer import config
from rammer.errors import RammerError
from rammer.vdevice.cpu.device import CpuVDevice
from rammer.vdevice.cpu.tune.calibrate import CALIBRATIONS

HERE = Path(__file__).parents[2]
CHILD = Path(__file__).with_name("version.py")
ROUNDS = 12
ANSWER_S = 120.0
COMPILE_S = 1800.0
SLOWER, LONGER = 0.98, 1.2  # what issues allow: of before's speed, and times its seconds of compiling
FIGURES = {
    "by_medians": "medians",
    "by_minima": "minima",
    "compile_ratio": "compiling",
    "compile_cpu_ratio": "its CPU time",
}

Visit = Callable[[float], list[float]]  # milliseconds of each run in so many seconds; RammerError if there is no answer


class Version:
    """A checkout, and a folder for what it makes: compiles a model, then runs it whenever asked."""

    def __init__(self, root: Path, folder: Path, calibrations: Path, bytecode: Path) -> None:
        self._root, self._folder, self._calibrations = root, folder, calibrations
        self._cache = folder / "cache"
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(root),
            "RAMMER_CACHE_DIR": str(self._cache),
            "PYTHONPYCACHEPREFIX": str(bytecode),
            "PYTHONDONTWRITEBYTECODE": "",  # as where it is installed: Python's own compiler is not what is timed
        }

    def compile(self, model: Path) -> dict[str, Any]:
        """Seconds of a cold compilation and names of rKernels. Raises RammerError with the compiler's reason."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._cache.mkdir(parents=True)
        shutil.copy(self._calibrations, self._cache)
        with self._started("compile", str(model)) as process:
            try:
                if process.wait(COMPILE_S):
                    raise self._ended()
            except subprocess.TimeoutExpired:
                raise RammerError(f"not compiled within {COMPILE_S:.0f} s") from None
        answer: dict[str, Any] = json.loads((self._folder / "compiled.json").read_text())
        return answer

    @contextmanager
    def running(self, built: BuiltModel) -> Iterator[tuple[Arrays, Visit]]:
        """Outputs of the loaded program's first run, and what runs it again."""
        shutil.copy(built.path.with_suffix(".inputs.npz"), self._folder / "inputs.npz")
        pipe, child = Pipe()
        with pipe, self._started("run", str(child.fileno()), pass_fds=(child.fileno(),)):
            child.close()

            def answer() -> list[float]:
                if not pipe.poll(ANSWER_S):
                    raise RammerError(f"no answer within {ANSWER_S:.0f} s")
                try:
                    samples: list[float] = pipe.recv()
                except EOFError:
                    raise self._ended() from None
                return samples

            def visit(seconds: float) -> list[float]:
                pipe.send(seconds)
                return answer()

            answer()
            with np.load(self._folder / "outputs.npz") as file:
                outputs = dict(file)
            yield outputs, visit

    @contextmanager
    def _started(self, what: str, argument: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        """A process of this version; it ends with all that it started."""
        command = [sys.executable, "-P", str(CHILD), what, str(self._folder), argument]
        with (
            self._complaints.open("wb") as complaints,
            subprocess.Popen(
                command,
                start_new_session=True,
                cwd=self._root,
                env=self._environment,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                **options,
            ) as process,
        ):
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def _ended(self) -> RammerError:
        return RammerError(f"its process ended: {self._complaints.read_text(errors='replace').strip()[-300:]}")

    @property
    def _complaints(self) -> Path:
        return self._folder / "complaints"


def compare(
    built: BuiltModel,
    roots: tuple[Path, Path],
    calibrations: Path,
    bytecode: Path,
    seconds: float,
    compilations: int = 1,
) -> dict[str, Any]:
    """Of a model, [before, now]: milliseconds, seconds of compiling, errors; and ratios of these, above 1: faster now.

    `bytecode` is where `bytecode_of` put that of both. Raises RammerError if a version cannot compile or run it, or is
    wrong.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rammer-before-")))
        versions = [Version(root, folder / str(n), calibrations, bytecode) for n, root in enumerate(roots)]
        compiled = [[version.compile(built.path) for version in versions] for _ in range(compilations)]
        running = [stack.enter_context(version.running(built)) for version in versions]
        errors = [worst_error(outputs, built.outputs) for outputs, _ in running]
        if not max(errors) < TOLERANCE:  # NaN is wrong, too
            raise RammerError("wrong output: relative errors {:.1e} before, {:.1e} now".format(*errors))
        rounds: list[list[list[float]]] = [[], []]
        for number in range(ROUNDS):
            for which in (0, 1) if number % 2 else (1, 0):
                rounds[which].append(running[which][1](seconds / ROUNDS))
    return {**summary(rounds), **compilation(compiled), "errors": errors}


def summary(rounds: list[list[list[float]]]) -> dict[str, Any]:
    """Of milliseconds by round, [before, now]: minima, medians of rounds' medians, numbers of runs; and ratios."""
    least = [min(min(row) for row in rows) for rows in rounds]
    medians = [[statistics.median(row) for row in rows] for rows in rounds]
    ratio, low, high = ratio_of_medians(*medians)
    return {
        "min_ms": least,
        "median_ms": [statistics.median(row) for row in medians],
        "n": [sum(map(len, rows)) for rows in rounds],
        "by_minima": least[0] / least[1],
        "by_medians": ratio,
        "interval": [low, high],
    }


def compilation(compiled: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Least seconds, [before, now], of compilations in turns; now over before; operators with another rKernel at last.

    `others` is None if there are more operators, or fewer, than before.
    """
    seconds, cpu = ([min(turn[which][key] for turn in compiled) for which in (0, 1)] for key in ("s", "cpu_s"))
    before, now = (answer["kernels"] for answer in compiled[-1])
    others = sum(a != b for a, b in zip(before, now, strict=True)) if len(before) == len(now) else None
    ratios = {"compile_ratio": seconds[1] / seconds[0], "compile_cpu_ratio": cpu[1] / cpu[0]}
    return {"compile_s": seconds, "compile_cpu_s": cpu, **ratios, "operators": len(now), "others": others}


def line(model: str, _: str, found: Mapping[str, Any]) -> str:
    """A model's figures."""
    if "failed" in found:
        return f"{model:26} {found['failed']}"
    low, high = found["interval"]
    runs = f"{found['by_medians']:.3f} [{low:.3f}, {high:.3f}] minima {found['by_minima']:.3f}"
    ms = "min ms {:.4f} {:.4f}".format(*found["min_ms"])
    ratios = f"({found['compile_ratio']:.2f}, of CPU time {found['compile_cpu_ratio']:.2f})"
    compiling = "compile s {:.1f} {:.1f} ".format(*found["compile_s"]) + ratios
    others = f"{found['others']} of {found['operators']} rKernels" if found["others"] is not None else "operators"
    return f"{model:26} {runs} {ms} n {min(found['n'])} {compiling} error {max(found['errors']):.0e} others: {others}"


def verdict(models: Mapping[str, Mapping[str, Any]]) -> str:
    """Geometric means, and which models are slower or compile longer than is allowed."""
    found = {name: entry["versions"] for name, entry in models.items() if "failed" not in entry["versions"]}
    if not found:
        return "nothing was compared"
    means = {key: statistics.geometric_mean(f[key] for f in found.values()) for key in FIGURES}
    slower = [n for n, f in found.items() if max(f["by_medians"], f["by_minima"]) < SLOWER]
    longer = [n for n, f in found.items() if min(f["compile_ratio"], f["compile_cpu_ratio"]) > LONGER]
    lines = [
        f"geometric mean of {len(found)}: " + ", ".join(f"{what} {means[key]:.3f}" for key, what in FIGURES.items())
    ]
    lines += [f"below {SLOWER} of before by medians and by minima: {', '.join(slower) or 'none'}"]
    lines += [f"compile above {LONGER} times as long, by the clock and by CPU time: {', '.join(longer) or 'none'}"]
    if failed := sorted(models.keys() - found.keys()):
        lines += [f"not compared: {', '.join(failed)}"]
    return "\n".join(lines)


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """A work tree of a commit of this repository, meanwhile. Raises RammerError if there is no such commit."""
    with tempfile.TemporaryDirectory(prefix="rammer-before-") as folder:
        root = Path(folder) / "tree"
        _git("worktree", "add", "--detach", "--quiet", str(root), revision)
        try:
            yield root
        finally:
            _git("worktree", "remove", "--force", str(root))


def revision_of(name: str) -> str:
    """The commit that a revision names. Raises RammerError if there is none."""
    return _git("rev-parse", "--verify", f"{name}^{{commit}}")


@contextmanager
def bytecode_of(roots: Iterable[Path]) -> Iterator[Path]:
    """A folder with the bytecode of checkouts, meanwhile."""
    with tempfile.TemporaryDirectory(prefix="rammer-before-") as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        for root in roots:
            command = [sys.executable, "-m", "compileall", "-q", "-j", "0", str(root / "rammer")]
            subprocess.run(command, env=environment, check=True)
        yield Path(folder)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RammerError(f"git {words[0]} failed: {done.stderr.strip()}", hint="name a commit of this repository")
    return done.stdout.strip()


def calibration() -> Path:
    """The file of this machine's numbers, which are measured if they never were."""
    path = config.cache_dir() / CALIBRATIONS
    if not path.exists():
        CpuVDevice().calibrate()
    return path


def built_form(case: cases.Case, size: str, dtype: str, folder: Path) -> BuiltModel:
    """A form of an operator, with ONNX Runtime's results. Raises RammerError where it has none."""

    def make() -> tuple[bytes, Arrays, Arrays]:
        model, inputs = case.made(size, dtype)
        names = [output.name for output in model.graph.output]
        try:
            results = onnxruntime_way(model, inputs, 1)()
        except Exception as reason:  # whatever it raises
            raise RammerError(f"ONNX Runtime: {reason}"[:200]) from reason
        return model.SerializeToString(), inputs, dict(zip(names, results, strict=True))

    return reuse("".join(c if c.isalnum() else "_" for c in f"{case.name}_{dtype}_{size}"), {}, make, folder)


def kept(output: Path, revision: str) -> dict[str, Any]:
    """What an earlier run against the same commit compared. Raises RammerError if it was another one."""
    content = json.loads(output.read_text())
    if (other := content["options"]["before"]) != revision:
        raise RammerError(f"{output} compares with {other[:8]}, and not with {revision[:8]}", hint="name another file")
    return {name: entry for name, entry in content["models"].items() if "failed" not in entry["versions"]}


@click.command()
@click.argument("revision")
@click.option("--models", default="", help="Comma-separated; NAME:4 for batch 4; of every suite.")
@click.option("--suite", "suite_name", type=click.Choice(["paper", "batch", "today", "light", "all"]), default="paper")
@click.option("--forms", default="", help="Instead of models, forms of `benchmarks.operators`: `TopK, 8; Softmax`.")
@click.option("--size", default="layer", show_default=True, help="Of forms: some of step,layer,map,odd.")
@click.option("--dtype", default="", help="Of forms: element types; by default all that they have.")
@click.option("--seconds", default=4.0, show_default=True, help="Of runs, per model and version.")
@click.option("--compilations", default=1, show_default=True, help="Cold ones of each, in turns; the least counts.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write to a file, model by model.")
@click.option("--resume", is_flag=True, help="Keep what that file has already.")
def main(
    revision: str,
    models: str,
    suite_name: str,
    forms: str,
    size: str,
    dtype: str,
    seconds: float,
    compilations: int,
    output: Path | None,
    resume: bool,
) -> None:
    """Compare REVISION with this checkout as it is; ratios above 1 mean faster now."""
    wanted = {f"{case.name} {at} {kind}": (case, at, kind) for case, at, kind in chosen_forms(forms, size, dtype)}
    names = [*wanted] if forms else chosen(models, catalog.names(), "model") or suite(suite_name)
    before = _git("rev-parse", "--verify", f"{revision}^{{commit}}")
    earlier = kept(output, before) if resume and output and output.exists() else {}
    calibrations = calibration()
    click.echo(f"{before[:8]} and {commit()['id'][:8]}: ratios of medians, before over now")
    with ExitStack() as stack:
        root = stack.enter_context(checkout(before))
        bytecode = stack.enter_context(bytecode_of((root, HERE)))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rammer-forms-")))

        def versions(name: str) -> dict[str, Any]:
            try:
                built = built_form(*wanted[name], folder) if forms else stored(catalog.named(name).built.path)
                return {"versions": compare(built, (root, HERE), calibrations, bytecode, seconds, compilations)}
            except RammerError as failure:
                return {"versions": {"failed": failure.what}}

        found = by_model(
            names, versions, line, {"before": before, "seconds": seconds, "compilations": compilations}, output, earlier
        )
    click.echo(verdict(found))


if __name__ == "__main__":
    main()
