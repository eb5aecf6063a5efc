"""Compile the networks of transformers by `rammer.from_torch`: `python -m benchmarks.families.modules --json FILE`.

The reference is eager PyTorch. The file has the form of `onnx_suite --models --json`, for `pages.model_table`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rammer_testing import children
from rammer_testing.errors import Mismatch, Result, errors_of, is_right, one_line

FAMILY = "transformers by from_torch"


def run_module(name: str, device: str = "CPU") -> Result:
    """Import, compile and run a network, and compare it with PyTorch."""
    import numpy as np
    import torch

    import rammer
    from benchmarks.families.transformers_models import network
    from rammer.errors import RammerError

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            module, x = network(name)
            wanted = [np.asarray(module(x))]
        except Exception as error:  # transformers raise anything
            return Result(name, "no reference", one_line(f"PyTorch does not run it: {type(error).__name__}: {error}"))
        try:
            with rammer.compile(rammer.from_torch(module, (x,)), device.lower()) as program:
                found = [np.asarray(program(x.numpy()))]
            errors = errors_of(found, wanted)
        except RammerError as error:
            return Result(name, "refused", one_line(str(error)))
        except Mismatch as error:
            return Result(name, "wrong", one_line(str(error)))
        except Exception as error:
            outcome = "refused" if type(error).__module__.startswith("torch.") else "error"  # torch.export's own
            return Result(name, outcome, one_line(f"{type(error).__name__}: {error}"))
    right = is_right(found, wanted)
    reason = "" if right else f"relative error {errors.relative:.2g}, {errors.ulp:g} ULP"
    return Result(name, "right" if right else "wrong", reason, errors)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    from benchmarks.families.transformers_models import KINDS

    parser = argparse.ArgumentParser(prog="python -m benchmarks.families.modules", description=__doc__)
    parser.add_argument("--only", default="", help="networks whose name has this regular expression in it")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=600, help="time limit of a network")
    parser.add_argument("--json", type=Path, help="write all results here")
    given = parser.parse_args(arguments)
    os.environ.setdefault("RAMMER_TUNE_SECONDS", "0")
    names = [name for name in KINDS if re.search(given.only, name)]
    results = children.run(run_module, names, jobs=given.jobs, seconds=given.seconds, show=_show)
    print(dict(Counter(result.outcome for result in results)))
    if given.json:
        rows = [{**asdict(r), "name": f"{FAMILY}/{r.name}/module", "family": FAMILY} for r in results]
        given.json.write_text(json.dumps({"device": "CPU", "results": rows}, indent=1), encoding="utf-8")
    return 0


def _show(result: Result) -> None:
    print(f"{result.name}: {result.outcome}{': ' * bool(result.reason)}{result.reason}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
