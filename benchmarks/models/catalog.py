"""Every model by name: the paper's, today's (`today_`), GraphTurbo's (`batched_`), the onnx package's (`light_`)."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.models import light
from benchmarks.models.store import BuiltModel, Scale
from benchmarks.on_paper.floors import Recurrence, Work, count
from rammer.errors import ModelError

LIGHT = "light_"
BATCHED = ("resnext29", "resnext29_grouped", "lstm_tc_lstm", "lstm_tc_unrolled")  # with larger batches, as in §5.2


@dataclass(frozen=True, slots=True)
class Entry:
    """A built model; `module` names the torch module that it was exported from, empty if there is none."""

    built: BuiltModel
    module: str
    batch: int
    work: Work
    recurrences: tuple[Recurrence, ...]


def paper_names() -> list[str]:
    from benchmarks.models.build import PAPER  # torch takes seconds to import

    return list(PAPER)


def today_names() -> list[str]:
    from benchmarks.models.build import TODAY

    return list(TODAY)


def light_names() -> list[str]:
    return [LIGHT + name for name in light.NAMES]


def names() -> list[str]:
    """Those of all suites, and what is run with batches alone."""
    from benchmarks.models.build import CATALOG

    return [*CATALOG, *light_names()]


def prepare(name: str, batch: int = 1, scale: Scale = "full") -> Entry:
    """Make or reuse a model; light ones have no choice of batch and scale. Raises RammerError for an unknown name."""
    if name.startswith(LIGHT):
        built = light.build(name.removeprefix(LIGHT))
        return Entry(built, "", 1, count(built.path), ())
    from benchmarks.models.build import build, find

    built = build(name, batch, scale)
    return Entry(built, name, batch, count(built.path), find(name).recurrences(scale))


def named(text: str, scale: Scale = "full") -> Entry:
    """`prepare` of NAME or NAME:BATCH. Raises RammerError for an unknown name, or a batch that is none."""
    name, _, batch = text.partition(":")
    if ":" in text and not (batch.isdecimal() and int(batch)):
        raise ModelError(f"{text!r}: {batch!r} is no batch", hint=f"a number above 0, as in {name}:4")
    return prepare(name, int(batch or 1), scale)
