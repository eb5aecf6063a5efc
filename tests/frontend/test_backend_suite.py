"""The ONNX backend suite through the importer and the NumPy meaning of its operators."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from backend_suite import Case, Execute, cases, outcome

from rammer.frontend.onnx.signature import NEWEST_OPSET
from rammer.ir.semantics.evaluate import evaluate_graph

EXPECTED = Path(__file__).with_name("expected_failures.txt")

# Cases that pass of all whose opset is supported, by kind. Raise these numbers when more pass.
AT_LEAST = {"node": 1630, "pytorch-converted": 82, "pytorch-operator": 35, "simple": 7}


def expected_failures() -> dict[str, str]:
    """name -> reason"""
    lines = [line for line in EXPECTED.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split(": ", 1) for line in lines)


def run_all(selected: list[Case], execute: Execute) -> dict[str, str]:
    """name -> why it fails, an empty string for those that pass."""
    return {case.name: outcome(case, execute) for case in selected}


def check_in_scope(execute: Execute) -> None:
    """Every first-tier case passes, except those listed; a listed one that passes is stale."""
    results = run_all([case for case in cases() if case.tier_1], execute)
    listed = expected_failures()
    failed = {name: why for name, why in results.items() if why}
    surprises = {name: why for name, why in failed.items() if name not in listed}
    assert not surprises, "\n".join(f"{name}: {why}" for name, why in surprises.items())
    stale = sorted(set(listed) - set(failed))
    assert not stale, f"remove from {EXPECTED.name}, they pass or do not exist: {stale}"


def test_first_tier_cases_pass() -> None:
    check_in_scope(evaluate_graph)


LATELY = 27  # the first opset whose new definitions are looked at one by one
REFUSED = {"Optional", "OptionalGetElement", "OptionalHasElement"}


def test_operators_that_were_redefined_lately_pass() -> None:
    """All that rammer has: what was defined anew is not taken for what it was before."""
    selected = [
        case
        for case in cases()
        if LATELY <= case.opset <= NEWEST_OPSET
        and case.plain
        and REFUSED.isdisjoint(n.op_type for n in case.model.graph.node)
    ]
    if not selected:
        pytest.skip(f"this onnx package has no cases of opset {LATELY}")
    failed = {name: why for name, why in run_all(selected, evaluate_graph).items() if why}
    assert not failed, failed


@pytest.mark.slow
def test_counts_by_kind_do_not_fall() -> None:
    selected = [case for case in cases() if case.opset <= NEWEST_OPSET]
    results = run_all(selected, evaluate_graph)
    passed = Counter(case.kind for case in selected if not results[case.name])
    total = Counter(case.kind for case in selected)
    print({kind: f"{passed[kind]} of {total[kind]}" for kind in total})
    if path := os.environ.get("RAMMER_SUITE_REPORT"):
        Path(path).write_text("".join(f"{name}: {why or 'passes'}\n" for name, why in sorted(results.items())))
    assert all(passed[kind] >= least for kind, least in AT_LEAST.items()), passed
