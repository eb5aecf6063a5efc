"""Compile for `torch.compile(model, backend="rammer")`: Dynamo's graphs become Programs, forward and backward.

Known as: a Dynamo backend, graph partitioning. Unsupported operators run in eager PyTorch between Programs, with one
warning per graph that names them. torch draws random numbers, in the order of eager PyTorch. torch imports this module
through its entry point.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from rammer.compiler import CompileOptions, compile
from rammer.compiler.options import DEVICE_OPTIONS
from rammer.errors import FallbackWarning, InputError, ModelError, RammerError, did_you_mean
from rammer.runtime.program import Program
from rammer_torch import decompositions, import_nodes, replace_layers, to_array, to_tensor, unsupported_reason

MAX_SIGNATURES = 8

torch._dynamo.config.allow_rnn = True  # else every recurrent module breaks the graph

Call = Callable[..., Sequence[Any]]


def backend(
    gm: fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """Compile a graph for `torch.compile`, given example inputs. `options` are those of `rammer.compile`.

    Without gradients, parameters and buffers are constants. Once one of them changes, they become inputs.
    """
    if mode is not None:
        raise InputError(f"rammer has no mode {mode!r}", hint="options={'tune_seconds': 60} measures for a minute")
    how = _checked(options or {})
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is not None and reason.graph_break:
        where = f" at {reason.user_stack[-1].filename}:{reason.user_stack[-1].lineno}" if reason.user_stack else ""
        warnings.warn(f"rammer: the graph breaks{where}: {reason.reason}", FallbackWarning, stacklevel=2)
    training = torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in inputs)
    replace_layers(gm, training=training)
    held = [t if hasattr(t, "_dynamo_static_input_type") or isinstance(t, torch.nn.Parameter) else None for t in inputs]

    def live(graph: fx.GraphModule, examples: Sequence[Any]) -> Call:
        return _boxed(_built(graph, {}, how))

    def frozen(graph: fx.GraphModule, examples: Sequence[Any]) -> Call:
        return _boxed(_Frozen(graph, held if len(examples) == len(held) else [], how))

    compiled = aot_autograd(
        fw_compiler=live,
        bw_compiler=live,
        inference_compiler=frozen,
        decompositions=decompositions(training),
        partition_fn=min_cut_rematerialization_partition,  # recompute cheap operators instead of storing their results
    )
    result: Callable[..., Any] = compiled(gm, inputs)
    return result


def _checked(options: Mapping[str, Any]) -> CompileOptions:
    """Return the options as one value. Raises InputError for an unknown one."""
    if unknown := [name for name in options if name not in DEVICE_OPTIONS]:
        hint = did_you_mean(unknown[0], DEVICE_OPTIONS) or f"options are {', '.join(DEVICE_OPTIONS)}"
        raise InputError(f"torch.compile has no option {unknown[0]!r} for rammer", hint=hint)
    return CompileOptions(**options)


def _boxed(call: Call) -> Call:
    """Adapt a call to AOTAutograd's convention: it takes one list, and empties it to free the tensors early."""

    def run(arguments: list[Any]) -> Sequence[Any]:
        given = tuple(arguments)
        arguments.clear()
        return call(*given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


class _Frozen:
    """A graph with parameters as constants, until one of them changes or is replaced."""

    def __init__(self, graph: fx.GraphModule, held: Sequence[Any], how: CompileOptions) -> None:
        self._graph, self._how = graph, how
        self._held = [(n, t, t._version) for n, t in enumerate(held) if t is not None]
        nodes = _placeholders(graph)
        self._call = _built(graph, {nodes[n]: t for n, t, _ in self._held}, how)

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        for n, tensor, version in self._held:
            if arguments[n] is not tensor or tensor._version != version:
                self._held = []
                self._call = _built(self._graph, {}, self._how)
                break
        return self._call(*arguments)


def _built(gm: fx.GraphModule, known: Mapping[fx.Node, Any], how: CompileOptions) -> Call:
    """Replace what can be compiled by Programs. If nothing can, the graph runs in eager PyTorch."""
    if any(_is_open(n.meta.get("val")) for n in _placeholders(gm)):
        return _Specialized(gm, known, how)
    with _disable_current_modes():
        constants = {n: getattr(gm, str(n.target)) for n in gm.graph.nodes if n.op == "get_attr"}
        for node, value in constants.items():
            node.meta.setdefault("val", value)
        against = {n: unsupported_reason(n) for n in gm.graph.nodes if n.op == "call_function"}
        while True:
            try:
                built = _with_programs(gm, {**known, **constants}, against, how)
                break
            except ModelError as error:
                named = [n for n in against if n.name == error.node and not against[n]]
                against |= dict.fromkeys(named or _left(against), error.what)
            except RammerError as error:
                against |= dict.fromkeys(_left(against), error.what)
    _warn(against)
    return built


def _left(against: Mapping[fx.Node, str]) -> list[fx.Node]:
    """Return the nodes without a reason against compiling. A getitem follows the node whose results it takes."""
    return [n for n, reason in against.items() if not reason and n.target is not operator.getitem]


def _placeholders(gm: fx.GraphModule) -> list[fx.Node]:
    return [n for n in gm.graph.nodes if n.op == "placeholder"]


def _is_open(value: Any) -> bool:
    """Check whether an argument has, or is, a symbolic number."""
    if isinstance(value, torch.Tensor):
        return not all(isinstance(extent, int) for extent in value.shape)
    return isinstance(value, torch.SymInt | torch.SymFloat)


class _Specialized:
    """A graph with symbolic shapes: traced and compiled anew for each signature. The last MAX_SIGNATURES are kept."""

    def __init__(self, gm: fx.GraphModule, known: Mapping[fx.Node, Any], how: CompileOptions) -> None:
        self._gm, self._how = gm, how
        self._known = [known.get(n) for n in _placeholders(gm)]
        self._calls: dict[tuple[Any, ...], Call] = {}

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        key = tuple(a.shape if isinstance(a, torch.Tensor) else a for a in arguments)
        call = self._calls.pop(key, None)
        if call is None:
            traced = make_fx(self._gm, tracing_mode="fake")(*arguments)
            traced.graph.eliminate_dead_code()
            pairs = zip(_placeholders(traced), self._known, strict=True)
            call = _built(traced, {n: t for n, t in pairs if t is not None}, self._how)
            while len(self._calls) >= MAX_SIGNATURES:
                del self._calls[next(iter(self._calls))]
        self._calls[key] = call
        return call(*arguments)


def _stages(nodes: Sequence[fx.Node], against: Mapping[fx.Node, str]) -> dict[fx.Node, int]:
    """Assign nodes to stages: even ones run in eager PyTorch, odd ones are Programs.

    Each node is in the first possible one.
    """
    stages: dict[fx.Node, int] = {}
    for node in nodes:
        first = max((stages.get(source, 0) for source in node.all_input_nodes), default=0)
        if node.target is operator.getitem:
            stages[node] = first
        else:
            stages[node] = first + (first % 2 != (0 if _is_eager(node, against) else 1))
    return stages


def _is_eager(node: fx.Node, against: Mapping[fx.Node, str]) -> bool:
    """Check whether a node runs in eager PyTorch. A node without operands does if a user of it does."""
    alone = not node.all_input_nodes and any(against.get(user) for user in node.users)
    return bool(against[node]) or alone


def _with_programs(
    gm: fx.GraphModule, known: Mapping[fx.Node, Any], against: Mapping[fx.Node, str], how: CompileOptions
) -> Call:
    """Build the graph with a call of a Program for each odd stage."""
    nodes = [n for n in gm.graph.nodes if n.op == "call_function"]
    stages = _stages(nodes, against)
    made = fx.Graph()
    places: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            places[node] = made.node_copy(node)
    for stage in sorted(set(stages.values())):
        members = {n: None for n in nodes if stages[n] == stage}
        if stage % 2 == 0:
            for node in members:
                places[node] = made.node_copy(node, places.__getitem__)
            continue
        inputs = {n.name: n for m in members for n in m.all_input_nodes if n not in members and n not in known}
        outputs = {n.name: n for n in members if any(user not in members for user in n.users)}
        if not outputs:
            continue
        graph = import_nodes(list(members), inputs, outputs, known, f"stage {stage}")
        call = _Program(compile(graph, how=how))
        results = made.call_function(call, tuple(places[n] for n in inputs.values()))
        for position, node in enumerate(outputs.values()):
            places[node] = made.call_function(operator.getitem, (results, position))
    made.node_copy(gm.graph.output_node(), places.__getitem__)
    call_all: Call = _alone(made) or fx.GraphModule(gm, made).forward
    return call_all


def _alone(graph: fx.Graph) -> Call | None:
    """Return a direct call of the Program if the graph is just that; otherwise None.

    The graph's generated code would cost as much as a small Program.
    """
    calls = [n for n in graph.nodes if n.op == "call_function" and n.target is not operator.getitem]
    (results,) = graph.output_node().args
    if len(calls) != 1 or not isinstance(program := calls[0].target, _Program):
        return None
    places = {n: place for place, n in enumerate(n for n in graph.nodes if n.op == "placeholder")}
    taken = [places.get(n) for n in calls[0].args]
    given = [r.args[1] if isinstance(r, fx.Node) and r.target is operator.getitem else None for r in results]
    if None in taken or None in given:
        return None
    run = program.run
    inputs = [(name, place) for name, place in zip(program.inputs, taken, strict=True) if place is not None]
    outputs = [program.outputs[n] for n in given if isinstance(n, int)]

    def call(*tensors: Any) -> list[Any]:
        found = run({name: to_array(tensors[place]) for name, place in inputs})
        return [to_tensor(found[name]) for name in outputs]

    return call


class _Program:
    """A Program that takes and returns tensors."""

    def __init__(self, program: Program) -> None:
        self.__name__ = self.__qualname__ = "program"
        self.run = program.run
        self.inputs, self.outputs = [p.name for p in program.inputs], [p.name for p in program.outputs]

    def __call__(self, *tensors: Any) -> list[Any]:
        arrays = map(to_array, tensors)
        found = self.run(dict(zip(self.inputs, arrays, strict=True)))
        return [to_tensor(found[name]) for name in self.outputs]


def _warn(against: Mapping[fx.Node, str]) -> None:
    """Warn once about what runs in eager PyTorch. Random numbers and assertions do so on purpose."""
    named: dict[str, dict[str, str]] = {}  # reason -> operator -> its first node
    for node, reason in against.items():
        on_purpose = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if reason and not on_purpose and not str(node.target).startswith("aten._assert"):
            named.setdefault(reason, {}).setdefault(str(node.target), node.name)
    if named:
        operators = [(", ".join(f"{op} (node {n!r})" for op, n in ops.items()), why) for why, ops in named.items()]
        listed = "; ".join(f"{ops}: {why}" for ops, why in operators)
        warnings.warn(f"rammer: in eager PyTorch run {listed}", FallbackWarning, stacklevel=2)
