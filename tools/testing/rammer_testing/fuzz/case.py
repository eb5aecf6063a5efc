"""Generate a case from a family's name and a seed: a model, its inputs, and how it is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper

from rammer.ir.tensor import Array, Shape
from rammer_testing.fuzz.families import FAMILIES, Family, Step
from rammer_testing.fuzz.families.declared import Lie, declared, is_open, lies
from rammer_testing.fuzz.sketch import Port, Sketch, Unfit

SHOWN = 16  # elements of a constant in a text
USUAL = 0.02  # share of cases that are compiled with default options
TRIES = 8  # attempts at a step that fits no value so far
CACHES = (None, None, 512 << 10, 1 << 20, 2 << 20)  # bytes of a vEU's private cache; None: the machine's


@dataclass(frozen=True, slots=True)
class Choices:
    """The values that a run of the fuzzer draws options from; `archs` are those of the target."""

    target: str
    policies: tuple[str, ...]
    archs: tuple[str | None, ...] = (None,)
    veus: tuple[str | int | None, ...] = (1, 2, 2, 3, 4, 7, 8)
    precisions: tuple[str, ...] = ("fp32",)


@dataclass(frozen=True, slots=True)
class Options:
    """How a case is compiled and run.

    `times`: where rKernels' times come from: "estimated" from the spec, "drawn" at random (so that any candidate may
    win), "measured" in a moment, or as long as a user would wait ("usual").
    `check` as RAMMER_CHECK: mostly 0, as it drops wrong rKernels and so hides them.
    `cache`: bytes of a vEU's private cache, or None. `saved`: also run from a saved program.
    """

    target: str
    policy: str
    arch: str | None = None
    veus: str | int | None = None
    cache: int | None = None
    times: str = "estimated"
    verify: int = 1
    check: int = 0
    saved: bool = False
    precision: str = "fp32"

    def __str__(self) -> str:
        cache = f", {self.cache >> 10} KiB of cache" if self.cache else ""
        rest = "".join((cache, f", verify {self.verify}, check {self.check}", ", saved" * self.saved))
        return f"{self.target} {self.arch or ''}, device {self.veus}, {self.policy}, {self.times} times{rest}"


@dataclass(frozen=True)
class Case:
    """A model with inputs and options. `name` is family:seed; equal names are equal cases with the same generators.

    `lies`: shapes that only the compiler gets, instead of the model's own. `undefined`: integer outputs by the input or
    output they are cast from. Elements that do not fit the integer type are not compared.
    """

    name: str
    model: ModelProto
    ports: Mapping[str, Port] = field(repr=False)
    options: Options
    lies: tuple[Lie, ...] = ()
    undefined: Mapping[str, str] = field(default_factory=dict)

    @property
    def given(self) -> ModelProto:
        """Return the model that the compiler gets."""
        return declared(self.model, self.lies)

    @property
    def shapes(self) -> dict[str, Shape] | None:
        """Return the shapes of the inputs, if the given model leaves some of them open; else None."""
        return {name: port.shape for name, port in self.ports.items()} if is_open(self.given) else None

    def text(self) -> str:
        """Return the model as text, without the elements of large constants."""
        short = ModelProto()
        short.CopyFrom(self.given)
        del short.graph.initializer[:]
        large = []
        for tensor in self.model.graph.initializer:
            if numpy_helper.to_array(tensor).size <= SHOWN:
                short.graph.initializer.append(tensor)
            else:
                large.append(f"{TensorProto.DataType.Name(tensor.data_type).lower()}{list(tensor.dims)} {tensor.name}")
        constants = f"constants: {', '.join(large)}\n" if large else ""
        return constants + onnx.printer.to_text(short)

    @property
    def family(self) -> str:
        return self.name.partition(":")[0]

    def inputs(self, run: int) -> dict[str, Array]:
        """Return inputs for a run; each `run` has its own elements."""
        random = np.random.default_rng(run)
        return {name: port.draw(random) for name, port in self.ports.items()}


def draw(name: str, choices: Choices) -> Case:
    """Return the case of this name (family:seed)."""
    family, _, _ = name.partition(":")
    sketch = Sketch(name, opset=Random(name).choice((21, 23)))
    _grow(sketch, FAMILIES[family])
    origins = [v for v in sketch.undefined.values() if v not in sketch.inputs]
    leaves = list(dict.fromkeys([*sketch.leaves(), *origins]))
    inner = [v for node in sketch.nodes for v in node.output if v and v not in leaves]
    outputs = leaves + [v for v in inner if sketch.chance(0.05)]
    model = sketch.model(outputs)
    names = {value.name for value in model.graph.input}
    ports = {n: port for n, port in sketch.inputs.items() if n in names}
    false = lies(sketch, model) if FAMILIES[family].lies else ()
    return Case(name, model, ports, _options(sketch.random, choices), false, sketch.undefined)


def _grow(sketch: Sketch, family: Family) -> None:
    """Start a model, and take steps until it has at least one node."""
    steps: Sequence[Step] = [step for _, step in family.steps]
    weights = [weight for weight, _ in family.steps]
    while not sketch.nodes:
        try:
            with sketch.attempt():
                family.start(sketch)
        except Unfit:
            continue
        for _ in range(sketch.random.randint(*family.size)):
            for step in sketch.random.choices(steps, weights, k=TRIES):
                try:
                    with sketch.attempt():
                        step(sketch)
                    break
                except Unfit:
                    continue


def _options(random: Random, choices: Choices) -> Options:
    if random.random() < USUAL and "auto" in choices.policies:
        return Options(choices.target, "auto", times="usual", check=1)
    return Options(
        choices.target,
        random.choice(choices.policies),
        random.choice(choices.archs),
        random.choice(choices.veus),
        random.choice(CACHES),
        random.choices(("estimated", "drawn", "measured"), (10, 10, 1))[0],
        random.choice((1, 1, 2)),
        random.choices((0, 1), (10, 1))[0],
        random.random() < 0.1,
        random.choice(choices.precisions),
    )
