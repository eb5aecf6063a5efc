"""Write docs/accuracy.md: `python -m benchmarks.pages.accuracy cpu.json families.json -o FILE`.

The first file has the cases of ONNX's backend suite, as `onnx_suite --json` writes them; others have models of folders,
as `onnx_suite --models FOLDER --json` writes them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rammer_testing.errors import EXCESS, Errors, Result

from benchmarks.pages.markdown import formatted

HEAD = """\
# Accuracy by case

This page is generated from the results of ONNX's backend suite on the CPU{also}{commit}. ULP is the largest distance
of a result from the reference, in units of the last place. The relative error is the largest difference of an output,
over the largest magnitude of that output.

    python -m rammer.testing.onnx_suite --json cpu.json
{command}

## Errors over {excess} times ONNX Runtime's

A case is flagged if both errors exceed {excess} times ONNX Runtime's, where its ULP count at least as 1 and its
relative error at least as 2⁻²⁴. {flagged} of the {both} cases that both compute are flagged.

{flags}
## Cases of ONNX's suite

The reference is the suite's own values. {exact} of {measured} cases with a result have no error at all, and are not in
the table. Cases are also left out where results must be equal, as for integers, and where they are random.
*–*: ONNX Runtime does not compute the case, or its result differs in form.

| case | ULP | relative | ONNX Runtime's ULP | relative | |
|---|---|---|---|---|---|
{rows}"""
ALSO = ", and of [models of other exporters](operators.md#models-of-other-exporters)"
OF_MODELS = "    python -m rammer.testing.onnx_suite --models FOLDER --json families.json\n"
COMMAND = "    python -m benchmarks.pages.accuracy cpu.json{files} -o docs/accuracy.md --commit COMMIT"
WHY = {  # what is flagged
    "test_densenet121": "all weights of a layer are equal, so terms of a sum round alike, and their order decides; the "
    "suite's values are ONNX Runtime's, and both are 3.3e-3 from the same network in float64",
}
MODELS = """
## Models of other exporters

The reference is ONNX Runtime itself, so an error is the distance between the two. Sums of another order differ by as
much. {exact} of {measured} models have no error, and are not in the table.

| model | ULP | relative |
|---|---|---|
{rows}"""


def page(suite: Sequence[Mapping[str, Any]], models: Sequence[Mapping[str, Any]], commit: str = "") -> str:
    """Return the page for results of the suite, and of models."""
    measured = [result for result in map(_result, suite) if result.errors]
    rows = [result for result in measured if result.errors != Errors()]
    flagged = [result for result in rows if result.is_excessive]
    text = HEAD.format(
        also=ALSO if models else "",
        commit=f", rammer at {commit}" if commit else "",
        command=OF_MODELS * bool(models) + COMMAND.format(files=" families.json" * bool(models)),
        excess=EXCESS,
        flagged=len(flagged),
        both=sum(result.others is not None for result in measured),
        flags="".join(f"* {_flag(result)}\n" for result in flagged) or "None.\n",
        exact=len(measured) - len(rows),
        measured=len(measured),
        rows="".join(_rows(rows)),
    )
    if models:
        known = [(model, _result(model)) for model in models if model["errors"]]
        unequal = [(model, result) for model, result in known if result.errors != Errors()]
        lines = (f"| {_name(model)} | {_numbers(result.errors)} |\n" for model, result in unequal)
        text += MODELS.format(exact=len(known) - len(unequal), measured=len(known), rows="".join(sorted(lines)))
    return formatted(text)


def _result(row: Mapping[str, Any]) -> Result:
    errors, others = (Errors(**row[key]) if row[key] else None for key in ("errors", "others"))
    return Result(row["name"], row["outcome"], row["reason"], errors, others)


def _name(model: Mapping[str, Any]) -> str:
    return f"{model['family']}/{Path(model['name']).parent.name}"


def _rows(results: Sequence[Result]) -> Iterator[str]:
    for result in sorted(results, key=lambda result: result.name):
        flag = " over" * result.is_excessive
        yield f"| {result.name} | {_numbers(result.errors)} | {_numbers(result.others)} |{flag} |\n"


def _flag(result: Result) -> str:
    assert result.errors and result.others
    ours, theirs = (f"{errors.ulp:g} ULP and {errors.relative:.1e}" for errors in (result.errors, result.others))
    return f"{result.name}: {ours}; ONNX Runtime {theirs}; {WHY.get(result.name, 'not explained')}"


def _numbers(errors: Errors | None) -> str:
    return f"{errors.ulp:.3g} | {errors.relative:.1e}" if errors else "– | –"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages.accuracy", description=__doc__)
    parser.add_argument("suite", type=Path, help="a file that onnx_suite --json has written")
    parser.add_argument("models", nargs="*", type=Path, help="files that onnx_suite --models --json has written")
    parser.add_argument("-o", "--output", required=True, type=Path)
    parser.add_argument("--commit", default="", help="of rammer that was run, to be named on the page")
    given = parser.parse_args(arguments)
    suite, *others = (json.loads(path.read_text(encoding="utf-8"))["results"] for path in (given.suite, *given.models))
    models = {model["name"]: model for results in others for model in results}
    given.output.write_text(page(suite, list(models.values()), given.commit), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
