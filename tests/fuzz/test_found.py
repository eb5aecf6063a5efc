"""Models that were wrong, crashed, or could not be compiled, in their smallest forms: right under every policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from cpus import runnable
from rammer_testing.fuzz import Case, Limits, Options, Sketch, Trial, Verdict, run_separately
from rammer_testing.fuzz.sketch import DOUBLE, FLOAT, HALF, I8, U8

import rammer
from rammer.compiler import Compilation
from rammer.ir.analysis.intervals import Intervals
from rammer.ir.verify import reference
from rammer.ir.verify.kernel import proven
from rammer.plugins import PluginRegistry

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
POLICIES = ("auto", "graphturbo", "list", "round_robin", "sequential", "stationary", "wavefront")
Builder = Callable[[Sketch], list[str]]
FOUND: dict[str, tuple[Builder, dict[str, object]]] = {}  # by name: a model, and options that it needs to fail


def found(**options: object) -> Callable[[Builder], Builder]:
    """Register a model, with options that differ from a policy's plain ones."""

    def register(builder: Builder) -> Builder:
        FOUND[builder.__name__] = (builder, options)
        return builder

    return register


def recurrent(s: Sketch, op: str, steps: int, features: int, hidden: int, gates: int) -> list[str]:
    w, r = (s.weights(2, gates * hidden, e, terms=e) for e in (features, hidden))
    attrs = {"direction": "bidirectional", "hidden_size": hidden, **({"linear_before_reset": 1} if gates == 3 else {})}
    bias = s.weights(2, 2 * gates * hidden, terms=4)
    return list(s.multi(op, s.input((steps, 1, features)), w, r, bias, outputs=2, **attrs))


@found(veus=2)
def bidirectional_lstm_of_33_steps(s: Sketch) -> list[str]:
    """A: weights packed in merged axes."""
    return recurrent(s, "LSTM", 33, 256, 128, 4)


@found(veus=2)
def bidirectional_gru(s: Sketch) -> list[str]:
    return recurrent(s, "GRU", 40, 64, 256, 3)


@found(veus=2)
def products_of_a_written_cell(s: Sketch) -> list[str]:
    x, h = s.input((36, 64)), s.input((36, 512))
    gates = s.node("Add", s.node("MatMul", x, s.weights(64, 2048)), s.node("MatMul", h, s.weights(512, 2048)))
    return list(s.multi("Split", gates, outputs=4, axis=1, num_outputs=4))


@found()
def resized_to_one_element(s: Sketch) -> list[str]:
    """Three elements halved are one, which pytorch_half_pixel takes from the first, whatever 3 * 0.5 is."""
    x, empty = s.input((2, 3, 3, 28)), ""
    attrs = {"coordinate_transformation_mode": "pytorch_half_pixel", "mode": "nearest", "nearest_mode": "ceil"}
    return [s.node("Resize", x, empty, s.constant(np.array([1, 1, 0.5, 0.5], np.float32)), **attrs)]


@found()
def last_windows_of_lp_pools(s: Sketch) -> list[str]:
    """ONNX's evaluator leaves elements of them out."""
    return [s.node("LpPool", s.input((1, 2, 38, 11)), kernel_shape=[5, 5], pads=[2] * 4, strides=[2, 2], ceil_mode=1)]


@found()
def products_of_a_narrow_cell(s: Sketch) -> list[str]:
    x, h = s.input((21, 128)), s.input((21, 12))
    gates = s.node("Add", s.node("MatMul", x, s.weights(128, 48)), s.node("MatMul", h, s.weights(12, 48)))
    return list(s.multi("Split", gates, outputs=4, axis=1, num_outputs=4))


@found(saved=True)
def parts_of_a_saved_product(s: Sketch) -> list[str]:
    """The bytes behind a packed constant were those of another process."""
    x, h = s.input((11, 4)), s.input((11, 15))
    gates = s.node("Add", s.node("MatMul", x, s.weights(4, 60)), s.node("MatMul", h, s.weights(15, 60)))
    return list(s.multi("Split", gates, outputs=4, axis=1, num_outputs=4))


@found()
def batched_product_by_a_constant(s: Sketch) -> list[str]:
    return [s.node("MatMul", s.input((1, 29, 40, 32)), s.weights(1, 29, 32, 75, terms=32))]


@found()
def a_biased_product_cut_in_eight(s: Sketch) -> list[str]:
    y = s.node("Add", s.node("MatMul", s.input((32, 8)), s.weights(8, 600)), s.weights(600, terms=1))
    return list(s.multi("Split", y, outputs=8, axis=1, num_outputs=8))


@found()
def equal_parts_behind_a_leading_one(s: Sketch) -> list[str]:
    """B: the form with a gate axis took the reshape's old shape."""
    y = s.node("MatMul", s.input((8, 24)), s.weights(24, 192))
    y = s.node("Reshape", y, s.constant([1, 8, 192]))
    a, b, c = s.multi("Split", y, outputs=3, axis=2, num_outputs=3)
    return [s.node("Add", a, b), s.node("Tanh", c)]


@found(verify=2)
def heads_of_equal_parts(s: Sketch) -> list[str]:
    y = s.node("Reshape", s.node("MatMul", s.input((4, 32)), s.weights(32, 96)), s.constant([1, 4, 96]))
    part, *_ = s.multi("Split", y, outputs=3, axis=2, num_outputs=3)
    return [s.node("Transpose", s.node("Reshape", part, s.constant([1, 4, 4, 8])), perm=[0, 2, 1, 3])]


@found()
def softmax_over_many_rows(s: Sketch) -> list[str]:
    """C: scratch of the whole axis times the lanes."""
    return [s.node("Softmax", s.input((1, 21, 224, 224)), axis=1)]


@found(cache=512 << 10)
def softmax_over_the_first_axis(s: Sketch) -> list[str]:
    return [s.node("Softmax", s.input((19, 62, 149)), axis=0)]


@found(cache=512 << 10)
def gru_of_many_rows(s: Sketch) -> list[str]:
    w, r = s.weights(1, 1536, 8, terms=8), s.weights(1, 1536, 512, terms=512)
    return list(s.multi("GRU", s.input((1, 128, 8)), w, r, outputs=2, hidden_size=512))


@found()
def reductions_over_ones(s: Sketch) -> list[str]:
    """D: axes of one element merged with what is no neighbour."""
    x, axes = s.input((2, 1, 1, 1)), s.constant([1, 2])
    return [s.node(op, x, axes, keepdims=0) for op in ("ReduceMax", "ReduceSum", "ReduceLogSumExp")]


@found()
def convolution_of_doubles(s: Sketch) -> list[str]:
    """E: hundreds of scalar accumulators, unrolled."""
    return [s.node("Conv", s.input((1, 3, 64, 64), DOUBLE), s.weights(3, 3, 3, 3, dtype=DOUBLE), pads=[1] * 4)]


@found()
def tasks_of_merged_axes_with_vectors(s: Sketch) -> list[str]:
    """F: tasks were cut in multiples of an image's width, and shorter than a vector."""
    y = s.node("Conv", s.input((1, 1014, 4, 3)), s.weights(4, 1014, 1, 1, terms=1014))
    z = s.node("LeakyRelu", y)
    return [z, s.node("Add", z, y)]


@found(veus=2)
def a_product_of_bytes_stored_beside_its_mean(s: Sketch) -> list[str]:
    """Tasks that end inside a vector stored its rest, too, which belongs to the next one."""
    zeros = [s.constant([n], I8) for n in (-4, 7)]
    weights = s.constant(s.numpy.integers(-127, 128, (28, 2)), I8)
    y = s.node("Cast", s.node("MatMulInteger", s.input((51, 27, 28), I8, -9, 9), weights, *zeros), to=FLOAT)
    mean = s.node("ReduceMean", y, s.constant([1, 2]), keepdims=1)
    return [mean, s.node("QuantizeLinear", y, s.constant([0.0352]), s.constant([2], I8))]


@found(veus=2)
def a_column_of_products_shown(s: Sketch) -> list[str]:
    """J: the same of a product in register blocks."""
    y = s.node("MatMul", s.input((1, 31, 31, 31)), s.weights(31, 1))
    return [s.node("IsInf", y), s.node("Less", y, s.weights(1, 1, 31, 31, 1, terms=1))]


@found(veus=1)
def a_narrow_convolution_and_its_sigmoid(s: Sketch) -> list[str]:
    """K: the padding of 71 channels in blocks was taken for what must be written."""
    y = s.node("Conv", s.input((1, 71, 6, 6)), s.weights(71, 1, 3, 6, terms=18), s.weights(71, terms=1), group=71)
    return [y, s.node("Sigmoid", y)]


@found(arch=runnable("x86-64-amx"), veus=2)
def a_batch_of_rows_in_parts(s: Sketch) -> list[str]:
    """Of five in tasks of three, the rows of a sixth were split into parts."""
    return [s.node("MatMul", s.input((5, 67, 96)), s.weights(96, 576))]


@found(arch=runnable("x86-64-amx"), veus=1, times="drawn", check=1)
def a_batch_of_products_beside_its_relu(s: Sketch) -> list[str]:
    """Rows of the first image were split into parts, for the products of all."""
    x, skipped = s.input((2, 32, 5, 1, 6)), s.input((2, 32, 5, 1, 6))
    y = s.node("Conv", x, s.weights(32, 32, 1, 1, 1, terms=32))
    return [s.node("Relu", s.node("Add", skipped, y)), y]


@found(arch=runnable("x86-64-sse4"), veus=1)
def transposed_doubles_with_three_outputs(s: Sketch) -> list[str]:
    """A stage inside of another's loop filled a vector past its part, and stored four elements for each."""
    x = s.node("Transpose", s.input((4, 13, 16), DOUBLE), perm=[2, 0, 1])
    x = s.node("Pow", s.node("Div", x, s.weights(13, dtype=DOUBLE)), s.constant(2.0, DOUBLE))
    x = s.node("Round", x)
    y = s.node("Softsign", s.node("Asinh", x))
    z = s.node("Div", y, s.weights(13, dtype=DOUBLE))
    return [z, s.node("Sqrt", s.node("Add", s.node("Abs", x), s.constant(0.5, DOUBLE))), y]


@found(arch=runnable("x86-64"), veus=1, check=1)
def the_logarithm_of_a_sum_near_one(s: Sketch) -> list[str]:
    """A trial took rounding for a fault."""
    return [s.node("ReduceLogSum", s.input((4, 2)), s.constant([0, 1]), keepdims=0)]


@found()
def gelu_far_below_zero(s: Sketch) -> list[str]:
    """x (1 + erf(x / √2)) of -1e6 was -0.06: erf was not -1."""
    return [s.node("Gelu", s.input((28, 96), low=-1e6, high=-1e5))]


def transposed(s: Sketch, size: int, out: int, kernel: int, stride: int) -> list[str]:
    weights = s.weights(12, out, kernel, kernel, terms=12 * kernel * kernel)
    return [s.node("ConvTranspose", s.input((1, 12, size, size)), weights, strides=[stride] * 2)]


@found(arch=runnable("x86-64-avx512"))
def a_transposed_convolution_to_one_channel(s: Sketch) -> list[str]:
    """L: channels unrolled in every piece of the padding took the C compiler too long."""
    return transposed(s, 14, 1, 4, 2)


@found(arch=runnable("x86-64-avx512"))
def a_transposed_convolution_in_steps_of_three(s: Sketch) -> list[str]:
    return transposed(s, 16, 4, 4, 3)


@found(arch=runnable("x86-64-avx512"))
def a_wide_window_of_few_channels(s: Sketch) -> list[str]:
    return [s.node("Conv", s.input((1, 6, 16, 16)), s.weights(3, 6, 7, 7, terms=294), pads=[1, 3, 6, 2])]


@found(arch=runnable("x86-64-avx512"))
def a_wide_window_of_gathered_rows(s: Sketch) -> list[str]:
    """M: thousands of numbers gathered one by one in a single block."""
    w = s.weights(3, 1, 7, 7, terms=49)
    return [s.node("Conv", s.input((1, 1, 34, 24)), w, pads=[5, 3, 5, 3], strides=[2, 2])]


@found()
def a_written_cell_with_more_behind_it(s: Sketch) -> list[str]:
    x, h, c = (s.input((3, e)) for e in (50, 2, 2))
    gates = s.node("Add", s.node("MatMul", x, s.weights(50, 8)), s.node("MatMul", h, s.weights(2, 8)))
    parts = s.multi("Split", s.node("Add", gates, s.weights(8)), outputs=4, axis=1, num_outputs=4)
    i, f, o = (s.node("Sigmoid", parts[n]) for n in (0, 1, 3))
    cell = s.node("Add", s.node("Mul", f, c), s.node("Mul", i, s.node("Tanh", parts[2])))
    squashed = s.node("Tanh", cell)
    return [s.node("Mul", o, squashed), s.node("Asinh", squashed)]


def a_few_columns_read_twice(s: Sketch, columns: int) -> list[str]:
    weights = s.constant(s.numpy.integers(-128, 128, (80, columns)), I8)
    scales = s.constant(s.numpy.uniform(0.01, 0.1, columns), FLOAT)
    y = s.node("MatMul", s.input((6, 80)), s.node("DequantizeLinear", weights, scales, axis=1))
    return [s.node("QuantizeLinear", y, s.constant(step, FLOAT), s.constant(126, U8)) for step in (0.5, 0.7)]


@found(veus=2)
def a_column_of_blocks_read_twice(s: Sketch) -> list[str]:
    """Blocks and their terms walk along one dimension of the weights, which was packed twice."""
    return a_few_columns_read_twice(s, 1)


@found(veus=2)
def columns_of_blocks_read_twice(s: Sketch) -> list[str]:
    return a_few_columns_read_twice(s, 4)


@found(veus=2, arch=runnable("x86-64-avx512"))
def columns_of_integers_read_twice(s: Sketch) -> list[str]:
    """The product is no output, and computed before the first loop of the one that is stored: it was left out."""
    weights = s.constant(s.numpy.integers(0, 256, (35, 2)), U8)
    summed = s.node("Cast", s.node("MatMulInteger", s.input((75, 35), I8), weights), to=FLOAT)
    scaled = s.node("Mul", summed, s.constant(1e-4, FLOAT))
    return [scaled, s.node("QuantizeLinear", summed, s.constant(300.0, FLOAT), s.constant(128, U8))]


@found()
def bytes_with_two_readers_in_few_channels(s: Sketch) -> list[str]:
    """Where a product has fewer columns than a vector, weights are its rows, and these were packed as the data."""
    x = s.input((1, 79, 8, 172), low=-3, high=3)
    data = s.node("QuantizeLinear", x, s.constant(0.0235), s.constant(np.array(5, np.int8), I8))
    drawn = s.constant(s.numpy.integers(-90, 90, (4, 79, 1, 1)).astype(np.int8), I8)
    zeros = s.constant(np.array([-3, 3, 6, -4], np.int8), I8)
    sums = s.node("ConvInteger", data, drawn, s.constant(np.array(-2, np.int8), I8), zeros)
    scaled = s.node("Mul", s.node("Cast", sums, to=FLOAT), s.constant(1.1e-5))
    rounded = s.node("QuantizeLinear", scaled, s.constant(0.0294), s.constant(np.array(6, np.int8), I8))
    return [rounded, s.node("Tanh", scaled)]


@found(arch=runnable("x86-64-avx512"))
def a_maximum_of_everything(s: Sketch) -> list[str]:
    """A row of sixteen maxima, each of which asked twice whether what came before is a number: clang took 36 s."""
    return [s.node("ReduceMax", s.input((2, 32, 16, 16)), keepdims=0)]


@found(arch=runnable("x86-64-avx2"))
def functions_of_functions(s: Sketch) -> list[str]:
    """Each of them reads its operand several times: a text of 64 kB, with 144 exponentials, took clang 25 s."""
    x, slope = s.input((1, 26, 2)), s.weights(26, 1)
    cubed = s.node("Pow", x, s.constant(3.0))
    soft = s.node("Softplus", s.node("Mish", s.node("PRelu", cubed, slope)))
    root = s.node("Sqrt", s.node("Add", s.node("Abs", x), s.constant(0.5)))
    total = s.node("Sum", root, soft, soft, soft)
    return [s.node("Softsign", s.node("Mul", total, total))]


@found(arch=runnable("x86-64"), veus=2, check=1)
def a_scalar_whose_rounding_is_looked_at_carefully(s: Sketch) -> list[str]:
    """One of no dimensions has no elements to be chosen from."""
    x, least = s.input((1, 384, 224, 1)), s.node("Clip", s.input(()), s.constant(0.0), s.constant(100.0))
    return [s.node("Sigmoid", least), s.node("ReduceMean", s.node("Clip", x, least), keepdims=0)]


@found(arch=runnable("x86-64-avx512bf16"))
def sums_of_bytes_shown_as_integers_and_twice_as_numbers(s: Sketch) -> list[str]:
    """The sums in float32 took the name of an output, and the cast back to integers read their old one."""
    weights = s.constant(s.numpy.integers(-127, 128, (3, 1, 1, 2)), I8)
    zeros = s.constant([116], U8), s.constant(-5, I8)
    sums = s.node("ConvInteger", s.input((1, 3, 24, 4), U8, 0, 255), weights, *zeros, group=3, kernel_shape=[1, 2])
    return [sums, s.node("Cast", sums, to=FLOAT), s.node("Neg", s.node("Cast", sums, to=FLOAT))]


@found(arch=runnable("x86-64-avx512"), veus=2)
def bytes_of_nine_columns_by_columns(s: Sketch) -> list[str]:
    """LLVM 22 stored the ninth byte of a row as eight bytes: a masked vector of one lane, narrowed from int64."""
    hot = s.node("Hardmax", s.input((100, 9)), axis=0)
    return [s.node("QuantizeLinear", hot, s.constant(0.0288), s.constant(145, U8))]


@found(arch=runnable("x86-64-sse4"))
def doubles_just_above_a_tie_of_halves(s: Sketch) -> list[str]:
    """By way of float32, which does not hold 2^-40 beside 1, they became ties."""
    x = s.node("Cast", s.input((28, 75), HALF, 1, 1.9), to=DOUBLE)
    return [s.node("Cast", s.node("Add", x, s.constant(2**-11 + 2**-40, DOUBLE)), to=HALF)]


@found()
def celu_of_a_scalar(s: Sketch) -> list[str]:
    """Its function body has a constant of one dimension."""
    return [s.node("Celu", s.input(()), alpha=0.7)]


def test_roles_that_read_the_same_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """N: a proof compared what is read in each of 91 roles with each of 91 loads, for every element: 70 seconds."""
    asked = 0
    plain = reference.missing

    def counting(wanted: Intervals, present: Intervals) -> Intervals:
        nonlocal asked
        asked += 1
        return plain(wanted, present)

    monkeypatch.setattr(reference, "missing", counting)
    sketch = Sketch("roles")
    registry = PluginRegistry(third_party=False)
    device = registry.open("cpu", arch=runnable("x86-64-avx512"), device=2)
    graph = rammer.from_onnx(sketch.model(a_written_cell_with_more_behind_it(sketch)))
    for kernels in Compilation(graph, device, registry=registry).candidates.kernels.values():
        assert all(not proven(kernel)[1] for kernel in kernels)
    assert 0 < asked < 20_000


def check(policy: str, names: Iterable[str]) -> None:
    def make(name: str) -> Callable[[], Trial]:
        builder, options = FOUND[name]

        def trial() -> Trial:
            sketch = Sketch(name)
            sketch.budget = 1e10
            outputs = builder(sketch)
            plain = {"target": "cpu", "policy": policy, "veus": 4, **options}
            return Trial(Case(f"found:{name}", sketch.model(outputs), sketch.inputs, Options(**plain)))  # type: ignore[arg-type]

        return trial

    verdicts: dict[str, Verdict] = run_separately({name: make(name) for name in names}, Limits(cpu_s=10.0))
    assert not {name: verdict for name, verdict in verdicts.items() if verdict.outcome != "right"}


@pytest.mark.parametrize("policy", POLICIES)
def test_found_faults_stay_away(policy: str) -> None:
    """Each under the default policy, and under one of the others in turn."""
    default, *others = POLICIES
    assert default == "auto"
    check(policy, FOUND if policy == default else [*FOUND][others.index(policy) :: len(others)])


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES[1:])
def test_found_faults_stay_away_under_every_policy(policy: str) -> None:
    check(policy, FOUND)
