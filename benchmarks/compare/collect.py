"""Results of several models, printed and written as they come."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from benchmarks.compare.run import commit, machine
from rammer import files


def by_model(
    models: Iterable[str],
    compare: Callable[[str], Mapping[str, Any]],
    line: Callable[[str, str, Any], str],
    options: Mapping[str, Any],
    output: Path | None,
    earlier: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Print a line for each model and backend when it is there; the file holds all that there are so far.

    `earlier` are models that are known already.
    """
    entries = dict(earlier)
    for model in models:
        if model not in earlier:
            entries[model] = compare(model)
        for backend, found in entries[model].items():
            click.echo(line(model, backend, found))
        if output:
            content = {
                "date": datetime.datetime.now(datetime.UTC).isoformat(),
                "commit": commit(),
                "machine": machine(),
                "options": options,
                "models": entries,
            }
            files.write(output, json.dumps(content, indent=1))
    return entries
