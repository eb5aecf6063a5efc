"""The speed of operators on their page."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.run import add_ratios, least_of_both
from benchmarks.pages.operator_speed import with_speed

PAGE = "# Operators\n\n| operator | `CPU` |\n|---|---|\n| Abs | float32 |\n| Zip | int8 |\n\n## What does not pass\n"


def result(size: str, peer_us: float, case: str = "Abs", domain: str = "") -> dict[str, Any]:
    ways = {way: {"min_us": us, "median_us": us, "n": 1} for way, us in (("run", 4.0), ("bound", 2.0), ("p", peer_us))}
    found: dict[str, Any] = {"case": case, "op": case, "domain": domain, "size": size, "dtype": "float32"}
    found |= {"ways": ways, "floor_us": 1.0}
    add_ratios(found)
    return found


def content(*results: dict[str, Any]) -> dict[str, Any]:
    return {"results": results, "machine": {"cpu": "a CPU"}, "commit": {"id": ""}}


def test_a_column_and_a_section_are_written_and_replaced() -> None:
    first = with_speed(PAGE, content(result("step", 400.0)))
    page = with_speed(first, content(result("layer", 2.0), result("map", 8.0), result("map", 32.0)))
    assert "| Abs | – / 0.5 / 4 / – | float32 |" in page and "| Zip | – | int8 |" in page
    assert page.count("## Speed of operators") == 1 and page.index("## Speed") < page.index("## What does not pass")
    assert "| Abs | float32 | layer | 0.50 | 1.00 | 4.0 | 2.0 |" in page and "| Abs | float32 | map |" not in page
    assert with_speed(page, content(result("step", 400.0))) == first


def test_a_repeated_measurement_keeps_the_least_of_each_way() -> None:
    both = least_of_both(result("map", 32.0), result("map", 8.0))
    add_ratios(both)
    assert both["ratio"] == 2 and both["ratio_bound"] == 4 and both["ways"]["p"]["n"] == 2
