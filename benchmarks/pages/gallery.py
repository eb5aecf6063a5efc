"""Write docs/gallery.md: six networks with explanations and timelines. `python -m benchmarks.pages.gallery`.

Times are estimates for the named device, so the pages need no such machine. Models are those of `benchmarks.models`.
"""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import NamedTuple

import click

import rammer
import rammer_viz as viz
from benchmarks.models import catalog

ROOT = Path(__file__).parents[2]
HEAD = """# Gallery

Six networks, each with its plan: the picture here, and a page with the timeline to zoom into and what bounds it.
All times are estimated; `python -m benchmarks.pages.gallery` writes this page.
[Read a schedule](start/read-a-schedule.md) explains what you see.
"""


class Shown(NamedTuple):
    """A network, what to see in its plan, and the device."""

    model: str
    title: str
    text: str
    device: dict[str, str | int]
    beside: str = ""


CPU: dict[str, str | int] = {"target": "cpu", "arch": "x86-64-avx512@here", "device": 4}
NETWORKS = (
    Shown(
        "today_vad",
        "Voice activity, 32 ms of speech",
        "An LSTM step after convolutions.\nIts rTasks take less than a microsecond: each hand-over shows.",
        {**CPU, "device": 2},
        "sequential",
    ),
    Shown(
        "light_squeezenet",
        "SqueezeNet",
        "Branches of a fire module run side by side.\nLarge early results are computed in parts that stay in caches.",
        CPU,
        "sequential",
    ),
    Shown(
        "nasnet_cifar",
        "NASNet-A for CIFAR",
        "Many small branches: the paper's case for scheduling operators together.",
        CPU,
        "sequential",
    ),
    Shown(
        "today_minilm_32",
        "MiniLM-L6, 32 tokens",
        "A chain of products.\nAlmost all time is arithmetic, and each operator uses all cores.",
        CPU,
    ),
    Shown(
        "today_mobilenet_v3",
        "MobileNet v3",
        "Depthwise convolutions do little arithmetic for the bytes that they move.",
        CPU,
    ),
    Shown(
        "today_denoiser_lstm",
        "A denoiser of two LSTM stages, one frame",
        "State goes from call to call, and both stages wait for each other.",
        {**CPU, "device": 2},
    ),
)


@click.command()
@click.option("--only", help="Draw this model again, and no other one.")
def main(only: str | None) -> None:
    """Draw all networks, and write the page."""
    folder = ROOT / "docs/gallery"
    folder.mkdir(exist_ok=True)
    parts = [HEAD]
    for shown in NETWORKS:
        if only in (None, shown.model):
            _draw(shown, folder)
        page = (folder / f"{shown.model}.html").read_text(encoding="utf-8")
        bound = unescape(page.partition("<h3>Bound by ")[2].partition("</h3>")[0])
        parts.append(
            f"## {shown.title}\n\n{shown.text}\nBound by {bound}.\n\n"
            f"[![The timeline of {shown.title}](gallery/{shown.model}.svg)](gallery/{shown.model}.html)\n"
        )
    (ROOT / "docs/gallery.md").write_text("\n".join(parts), encoding="utf-8")


def _draw(shown: Shown, folder: Path) -> None:
    """Plan a network, and write its picture and its page."""
    how = rammer.CompileOptions(**shown.device, tune_seconds=0)  # type: ignore[arg-type]
    graph = replace(rammer.load(catalog.named(shown.model).built.path), name=shown.title)
    with rammer.Compilation.of(graph, how) as compilation:
        plan, timeline = compilation.proven.plan, compilation.proven.timeline
        policies = compilation.estimates(["sequential", "wavefront", "graphturbo"])
    others = {}
    if shown.beside:
        with rammer.Compilation.of(graph, how.but(policy=shown.beside)) as other:
            others[shown.beside] = other.proven.timeline, other.proven.plan
    why = viz.explain(timeline, plan, policies)._repr_html_()
    (folder / f"{shown.model}.svg").write_text(viz.svg(timeline, plan, width=1000), encoding="utf-8")
    (folder / f"{shown.model}.html").write_text(viz.html(timeline, plan, others=others, why=why), encoding="utf-8")
    click.echo(f"{shown.model}: {timeline.total_us:.1f} µs")


if __name__ == "__main__":
    main()
