"""The papers' evaluation: the book follows from its results byte for byte; runs go on where they stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from benchmarks.graphturbo import plans
from benchmarks.paper import __main__ as command
from benchmarks.paper import book, chart, figures, results, runner
from benchmarks.paper.experiments import simulated
from benchmarks.paper.figure import Claim, Drawn, Figure, Job, Panel, Points, Source, Values
from benchmarks.paper.figures import FIGURES
from rammer.errors import RammerError


def test_the_book_follows_from_its_results() -> None:
    written = {p.name: p.read_text(encoding="utf-8") for p in results.BOOK.iterdir() if p.is_file()}
    assert written == book.pages(FIGURES.values()), "run python -m benchmarks.paper --render"


def test_results_have_a_figure_and_say_how_they_came_about() -> None:
    for path in (results.BOOK / "results").iterdir():
        figures = [f for f in FIGURES.values() if path.stem == (f.results or f.name)]
        jobs = {job.key: job for figure in figures for job in figure.jobs()}
        for key, point in results.load(figures[0]).items():
            assert key in jobs, f"{path.name} has {key!r}, which no job makes"
            assert (point.source.kind == "measured") == bool(jobs[key].target)


class Counter:
    """Jobs that count how often they are made; `broken` ones fail."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.broken = {"b"}

    def figure(self, name: str = "figure99") -> Figure:
        def make(key: str) -> tuple[Source, Values]:
            self.made.append(key)
            if key in self.broken:
                raise RammerError(f"{key} cannot be made", hint="wait")
            return Source("counted", "fingers"), {"ms": float(ord(key))}

        def draw(points: Points) -> Drawn:
            row = tuple(points[k].values["ms"] if k in points else None for k in "abc")
            return Drawn((Panel("t", "ms", "bars", ("a", "b", "c"), {"s": row}),))

        jobs = [Job("a", lambda: make("a")), Job("b", lambda: make("b")), Job("c", lambda: make("c"), target="cpu")]
        claim = Claim("a", "1", lambda points: "97" if "a" in points else None)
        return Figure(name, "Figure 99", "A figure.", "§9", "By hand.", lambda: jobs, draw, (claim,), ("why",))


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Counter:
    counter = Counter()
    monkeypatch.setattr(command, "FIGURES", {"figure99": counter.figure()})
    monkeypatch.setattr(results, "BOOK", tmp_path)
    return counter


def test_a_run_goes_on_where_it_stopped(counter: Counter, tmp_path: Path) -> None:
    run = CliRunner().invoke(command.main, ["--only", "figure99"])
    assert run.exit_code == 1 and "b cannot be made" in run.output and "1 parts are to be measured" in run.output
    page = (tmp_path / "figure99.md").read_text()
    assert "**Not made yet** (1 part: b): run `python -m benchmarks.paper --only figure99`." in page
    assert "(1 part: c): run `python -m benchmarks.paper --only figure99 --measure` on a machine that does" in page
    assert "| a | 1 | 97 |" in page and "counted: fingers" in page and "![Figure 99](figure99.svg)" in page
    counter.broken.clear()
    assert CliRunner().invoke(command.main, ["--only", "figure99", "--measure"]).exit_code == 0
    assert counter.made == ["a", "b", "b", "c"]
    assert "Not made yet" not in (tmp_path / "figure99.md").read_text()
    assert CliRunner().invoke(command.main, ["--only", "figure99", "--again", "--parts", "a"]).exit_code == 0
    assert counter.made == ["a", "b", "b", "c", "a"]
    assert set(json.loads((tmp_path / "results" / "figure99.json").read_text())) == {"a", "b", "c"}


def test_what_older_commits_made_is_made_again(counter: Counter) -> None:
    counter.broken.clear()
    figure = command.FIGURES["figure99"]
    assert CliRunner().invoke(command.main, ["--only", "figure99"]).exit_code == 0
    known = results.load(figure)
    results.store(figure, {**known, "a": replace(known["a"], commit="0000000+")})  # of a history that is not here
    again = ["--only", "figure99", "--since", "HEAD"]
    assert CliRunner().invoke(command.main, again).exit_code == 0
    assert counter.made == ["a", "b", "a"]
    assert CliRunner().invoke(command.main, again).exit_code == 0  # nothing is left
    assert counter.made == ["a", "b", "a"]
    run = CliRunner().invoke(command.main, ["--only", "figure99", "--since", "v99"])
    assert run.exit_code == 1 and "no commit 'v99'" in run.output


def test_workers_make_what_is_not_measured(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    dask = pytest.importorskip("dask.distributed", reason="Dask is not installed: pip install '.[distributed]'")

    @contextmanager
    def connect(scheduler: str | None, *, workers: int) -> Iterator[Any]:
        with dask.Client(processes=False, n_workers=workers, threads_per_worker=1, dashboard_address=":0") as client:
            yield client

    monkeypatch.setattr(runner, "connect", connect)
    monkeypatch.setattr(figures, "FIGURES", command.FIGURES)
    run = CliRunner().invoke(command.main, ["--only", "figure99", "--workers", "2", "--measure"])
    assert run.exit_code == 1 and "b cannot be made" in run.output
    assert sorted(counter.made[:2]) == ["a", "b"] and counter.made[2:] == ["c"]  # c is measured: last, and alone
    assert results.load(command.FIGURES["figure99"]).keys() == {"a", "c"}


def test_an_unknown_figure_is_refused(counter: Counter) -> None:
    run = CliRunner().invoke(command.main, ["--only", "figure9"])
    assert run.exit_code == 2 and "figure99" in run.output


def test_models_of_jobs_have_a_batch_and_a_scale() -> None:
    assert simulated.split("alexnet") == ("alexnet", 1, "full")
    assert simulated.split("resnext101:4") == ("resnext101", 4, "full") and simulated.title("resnext101:4") == (
        "ResNeXt-101, BS 4"
    )
    assert simulated.split("seq2seq_unrolled:1:four") == ("seq2seq_unrolled", 1, "four")
    assert simulated.title("seq2seq_unrolled:1:four") == "Seq2Seq, BS 1"
    assert simulated.spread({"alexnet:1": 1.5}) == "1.50× (AlexNet, BS 1)"
    assert simulated.spread({"alexnet:1": 1.0, "resnext29:1": 3.0}) == "2.00× on average, up to 3.00× (ResNeXt, BS 1)"


@pytest.mark.parametrize(
    "panel",
    [
        Panel("bars", "ms", "bars", ("a", "b <&>"), {"s": (1.0, None), "t": (250.0, 0.5)}, log=True, unit="%"),
        Panel("bars", "ms", "bars", tuple(f"a long name {n}" for n in range(12)), {"s": (3.0,) * 12}),
        Panel("none", "ms", "bars", ("a",), {"s": (None,)}),
        Panel("zero", "ms", "bars", ("a",), {"s": (0.0,)}),
        Panel("curves", "share", "curves", curves={"s": ((1.0, 0.0), (2.5, 1.0))}, across="x"),
        Panel("dots", "us", "dots", curves={"s": ((1.0, 10.0), (2.5, 1.0))}, across="x", log=True),
    ],
)
def test_charts_are_svg(panel: Panel) -> None:
    text = chart.svg([panel, panel])
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg") and text == chart.svg([panel, panel])
    for bar in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(bar.get("height", "0")) >= 0 and 0 <= float(bar.get("x", "0")) < chart.WIDE


def test_logarithmic_axes_have_dots_and_long_legends_have_lines() -> None:
    """A bar's length would depend on where such an axis begins."""
    series = {f"a system with a long name {n}": (1.0 + n, 20.0) for n in range(9)}
    svg = "{http://www.w3.org/2000/svg}"
    root = ElementTree.fromstring(chart.svg([Panel("p", "ms", "bars", ("a", "b"), series, log=True)]))
    assert len([*root.iter(f"{svg}circle")]) == 18
    assert all(bar.get("height") == "10" for bar in root.iter(f"{svg}rect") if bar.get("x"))  # the legend's alone
    labels = [text for text in root.iter(f"{svg}text") if (text.text or "").startswith("a system")]
    ends = [(float(t.get("x", "0")) + 6.2 * len(t.text or ""), t.get("y")) for t in labels]
    assert max(end for end, _ in ends) <= chart.WIDE and len({y for _, y in ends}) >= 2


def test_no_chart_has_a_category_twice() -> None:
    for figure in FIGURES.values():
        for panel in figure.draw(results.of_figure(figure)).panels:
            assert len(set(panel.groups)) == len(panel.groups), (figure.name, panel.title)


def test_numbers_have_three_digits() -> None:
    assert [chart.number(v) for v in (0, 1234.5, 12.34, 1.0, 0.01234)] == ["0", "1234", "12.3", "1", "0.0123"]


def test_stages_of_resnet_are_the_papers_and_their_sums_the_whole_plans() -> None:
    """Four stages, cut into 8, 4, 2 and 1 instances; what they move is what the plans move."""
    stages, numbers = plans.stages("ResNet-50, sums apart", 16), plans.numbers("ResNet-50, sums apart", 16)
    assert stages["groups"] == [15, 17, 25, 16] and stages["instances"] == [8, 4, 2, 1]
    computing = numbers["computing_ms"]
    assert sum(stages["computing_ms"]) == pytest.approx(computing, rel=1e-4)
    for way in ("layers", "rules"):
        assert sum(stages[way]) == pytest.approx(numbers["ways"][way]["in_turn_ms"] - computing, rel=1e-3)


def test_what_graphturbo_adds_makes_plans_no_slower() -> None:
    ways = plans.numbers("MobileNet-v2", 4)["ways"]
    turns = [ways[way]["in_turn_ms"] for way in ("layers", "shared", "near", "rules", "search")]
    assert turns == sorted(turns, reverse=True)
    assert all(way["main_mb"] >= plans.numbers("MobileNet-v2", 4)["least_mb"] for way in ways.values())


def test_the_papers_numbers_are_drawn_beside_ours() -> None:
    """Means and largest numbers are pairs of marks; text without a number, or with a range, is not drawn."""
    assert book.numbers("2.59× on average, up to 6.29× (LSTM-TC, BS 1)") == {("×", ""): 2.59, ("×", "largest"): 6.29}
    assert book.numbers("18.43%, 2.27 ms") == {("%", ""): 18.43, ("ms", ""): 2.27}
    assert not book.numbers("16% to 55%") and not book.numbers("not always faster") and not book.numbers("–")
    claims = [Claim("a", "2×, up to 8×", lambda points: "1×, up to 4.5×"), Claim("b", "–", lambda points: "3×")]
    claims += [Claim("c", "4×", lambda points: None), Claim("d", "7%", lambda points: "9%")]
    times, shares = book.beside((claim, {}) for claim in claims)
    assert times.groups == ("a",) and shares.groups == ("d",)
    assert [*times.series.values()] == [(2.0,), (1.0,), (8.0,), (4.5,)] and len(shares.series) == 2
    svg = "{http://www.w3.org/2000/svg}"
    root = ElementTree.fromstring(chart.svg([times]))
    places = {m.find(f"{svg}title").text: m for m in root.iter() if m.find(f"{svg}title") is not None}  # type: ignore[union-attr]
    assert {*places} == {"a: 1×", "a: 2×", "a: 8×", "a: 4.5×"}
    assert float(places["a: 1×"].get("cx", "0")) < float(places["a: 2×"].get("cx", "0"))
    for figure in FIGURES.values():
        for panel in book.beside((claim, results.of_figure(figure)) for claim in figure.claims):
            assert all(len(name) * 5.8 < chart.WIDE - chart.TEXTS - 250 for name in panel.groups), panel.groups
