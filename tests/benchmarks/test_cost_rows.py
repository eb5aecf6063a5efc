"""Which turns of `benchmarks.on_paper.cost` count."""

from __future__ import annotations

from benchmarks.on_paper.cost import Row


def row(estimated: list[float], measured: list[float], reference: list[float]) -> Row:
    return Row("model", estimated, estimated, measured, measured, {}, reference)


def test_turns_around_which_the_machine_changed_do_not_count() -> None:
    found = row([10.0, 8.0, 10.1], [20.0, 9.0, 20.2], [1.0, 1.2, 0.99])
    assert (found.ratio, found.disturbed, found.is_steady) == (0.5, 1, True)


def test_two_turns_that_count_must_agree() -> None:
    assert not row([10.0, 10.0], [20.0, 20.0], [1.0, 0.9]).is_steady
    assert not row([10.0, 10.0], [20.0, 21.0], [1.0, 1.0]).is_steady
    assert row([10.0, 10.0], [20.0, 20.0], [1.0, 1.0]).is_steady


def test_if_all_were_disturbed_they_are_shown_and_called_so() -> None:
    found = row([10.0, 8.0], [20.0, 9.0], [1.5, 0.5])
    assert (found.ratio, found.disturbed, found.is_steady) == (8 / 9, 2, False)
