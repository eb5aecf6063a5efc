"""Check a model's own functions before inlining: their operators, and the size of the model with all calls inlined.

Known as: inlining. Both are computed once per function, not per call: if each function calls the next one twice, a file
of 2 KB has 2^28 calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from onnx import FunctionProto, NodeProto, defs

from rammer.errors import ModelError
from rammer.frontend.onnx.limits import Limits
from rammer.frontend.onnx.node import handler_for
from rammer.frontend.onnx.parts import label_of, subgraphs
from rammer.frontend.onnx.signature import OPSETS, signature

Opsets: TypeAlias = Mapping[str, int]
FunctionKey: TypeAlias = tuple[str, str, str]  # domain, name, overload


@dataclass(frozen=True, slots=True)
class _Size:
    """Size of a function with everything that it calls inlined: nodes, and the depth of nested calls and subgraphs."""

    nodes: int = 0
    depth: int = 0


class Functions:
    """The functions that a model defines. Raises ModelError for two of one name."""

    def __init__(self, functions: Iterable[FunctionProto], limits: Limits) -> None:
        self._limits = limits
        self._known: dict[FunctionKey, FunctionProto] = {}
        self._sizes: dict[FunctionKey, _Size] = {}
        for function in functions:
            key = (domain_of(function.domain), function.name, function.overload)
            if key in self._known:
                raise ModelError(f"function {qualified(*key)} is defined twice")
            self._known[key] = function

    def called(self, node: NodeProto) -> FunctionProto | None:
        """Return the function that a node calls; None if it is an operator."""
        return self._known.get(_key(node))

    def require_small(self, nodes: Sequence[NodeProto]) -> None:
        """Raise ModelError if inlining all calls exceeds Limits.nodes or Limits.depth, before anything is inlined."""
        size = self._size(nodes, (), 0) if self._known else _Size(len(nodes))
        if size.nodes > self._limits.nodes:
            raise ModelError(f"more than {self._limits.nodes} nodes with functions inlined", hint="raise Limits.nodes")

    def _size(self, nodes: Iterable[NodeProto], inside: tuple[FunctionKey, ...], depth: int) -> _Size:
        """Measure nodes that are `depth` calls and subgraphs deep, in the bodies of the functions `inside`."""
        count, deepest = 0, 0
        for node in nodes:
            count += 1
            if (function := self.called(node)) is not None:
                inner = self._size_of(node, function, inside, depth + 1)
                count, deepest = count + inner.nodes, max(deepest, inner.depth + 1)
            for graph in subgraphs(node):
                self._require_depth(node, depth + 1)
                inner = self._size(graph.node, inside, depth + 1)
                count, deepest = count + inner.nodes, max(deepest, inner.depth + 1)
        return _Size(count, deepest)

    def _size_of(self, node: NodeProto, function: FunctionProto, inside: tuple[FunctionKey, ...], depth: int) -> _Size:
        key = _key(node)
        if key in inside:
            cycle = " -> ".join(qualified(*k) for k in (*inside[inside.index(key) :], key))
            raise ModelError(f"functions call each other: {cycle}", node=label_of(node), hint="ONNX has no recursion")
        known = self._sizes.get(key)
        self._require_depth(node, depth + (known.depth if known else 0))
        if known is None:
            known = self._sizes[key] = self._size(function.node, (*inside, key), depth)
        return known

    def _require_depth(self, node: NodeProto, depth: int) -> None:
        if depth > self._limits.depth:
            raise ModelError(
                f"functions and subgraphs are nested deeper than {self._limits.depth}",
                node=label_of(node),
                hint="raise Limits.depth",
            )

    def require_supported(self, nodes: Iterable[NodeProto], opsets: Opsets) -> None:
        """Raise one ModelError that lists every unsupported operator, with the nodes that use it.

        Subgraphs are checked later, when they are imported: a constant condition may exclude one.
        """
        missing = self._missing_in(nodes, opsets)
        if missing:
            lines = [
                f"{op} (node {', '.join(repr(n) for n in names[:5])}{f' and {len(names) - 5} more' * (len(names) > 5)})"
                for op, names in sorted(missing.items())
            ]
            raise ModelError(
                f"{len(lines)} unsupported operator{'s' * (len(lines) > 1)}: {'; '.join(lines)}",
                op=next(iter(sorted(missing))) if len(missing) == 1 else "",
                hint="export the model without them, or register a handler (rammer.frontend.onnx.handles)",
            )

    def _missing_in(self, nodes: Iterable[NodeProto], opsets: Opsets) -> dict[str, list[str]]:
        """Return unsupported operators with the labels of their nodes; each function counts once."""
        missing: dict[str, list[str]] = {}
        called: set[FunctionKey] = set()
        waiting: list[tuple[Iterable[NodeProto], Opsets]] = [(nodes, opsets)]
        while waiting:
            nodes, opsets = waiting.pop()
            for node in nodes:
                key = _key(node)
                if (function := self._known.get(key)) is not None:
                    if key not in called:
                        called.add(key)
                        waiting.append((function.node, opsets_of(function.opset_import, f"function {qualified(*key)}")))
                elif why := _unsupported(node, opsets):
                    missing.setdefault(why, []).append(label_of(node))
        return missing


def _unsupported(node: NodeProto, opsets: Opsets) -> str:
    """Return the operator's name if it cannot be imported; empty if it can."""
    domain = domain_of(node.domain)
    if domain not in opsets:
        return f"{node.op_type} of the domain {domain!r}, which the model does not import,"
    found = signature(node.op_type, opsets[domain], domain)
    name = qualified(domain, node.op_type, node.overload)
    own = handler_for(domain, node.op_type, opsets[domain])
    if found is None or found.schema.deprecated:
        if found is None and own is not None and (domain or not defs.has(node.op_type)):
            return ""
        return f"{name} (not in opset {opsets[domain]})"
    return name if own is None and not found.is_function else ""


def _key(node: NodeProto) -> FunctionKey:
    return domain_of(node.domain), node.op_type, node.overload


def domain_of(domain: str) -> str:
    """Return the domain, with the standard's own as an empty string."""
    return "" if domain == "ai.onnx" else domain


def qualified(domain: str, name: str, overload: str = "") -> str:
    """Return an operator's or function's name with its domain and overload."""
    return f"{domain + '.' if domain else ''}{name}{':' + overload if overload else ''}"


def opsets_of(imports: Iterable[Any], what: str) -> dict[str, int]:
    """Return the opset of each domain. Raises ModelError for an unknown or repeated one."""
    opsets: dict[str, int] = {}
    for entry in imports:
        domain = domain_of(entry.domain)
        if domain in opsets and opsets[domain] != entry.version:
            raise ModelError(f"{what} imports domain {domain or 'ai.onnx'!r} twice")
        opsets[domain] = entry.version
        oldest, newest = OPSETS.get(domain, (entry.version, entry.version))
        if not oldest <= entry.version <= newest:
            raise ModelError(
                f"{what} uses opset {entry.version}{f' of {domain}' if domain else ''}; "
                f"supported are {oldest}…{newest}",
                hint="convert the model, for example with onnx.version_converter",
            )
    if not opsets:
        raise ModelError(f"{what} imports no operator set")
    return opsets
