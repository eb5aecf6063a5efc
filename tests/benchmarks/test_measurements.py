"""The page of measurements follows from its records, and shows the newest result of each claim."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.pages import measurements

TOPICS = measurements.topics()


def test_the_page_follows_from_the_records() -> None:
    page = (measurements.DOCS / "measurements.md").read_text(encoding="utf-8")
    assert page == measurements.page(TOPICS), "run python -m benchmarks.pages.measurements"


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_records_are_whole(topic: measurements.Topic) -> None:
    assert topic.newest(), "no record has a result"
    for record in topic.records:
        assert tuple(record) == measurements.FIELDS
        assert all(record[field] for field in ("claim", "command", "commit", "machine", "date", "n"))
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["date"])
        assert record["result"] or record["rows"] or record["text"]
        assert len({tuple(row) for row in record["rows"]}) <= 1, "rows of one table have the same columns"
    for file in topic.raw:
        json.loads((measurements.DOCS / "measured" / file).read_text(encoding="utf-8"))


def test_the_newest_result_of_a_claim_is_shown(tmp_path: Path) -> None:
    def record(claim: str, result: str, date: str) -> dict[str, object]:
        rest = {"command": "python -m x | y", "commit": "c", "machine": "m", "n": "1", "rows": [], "text": ""}
        return {"claim": claim, "result": result, "date": date, **rest}

    records = [
        record("a", "old", "2026-01-01"),
        record("b", "only", "2026-01-02"),
        record("a", "new", "2026-01-03"),
        record("a", "", "2026-01-04"),
    ]
    topic = {"title": "T", "group": measurements.GROUPS[0], "records": records}
    (tmp_path / "t.json").write_text(json.dumps(topic))
    page = measurements.page(measurements.topics(tmp_path))
    assert "| a | **new** |" in page and "| b | **only** |" in page and "old" not in page
    assert "`python -m x \\| y`" in page
