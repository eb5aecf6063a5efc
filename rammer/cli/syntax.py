"""Write keywords of Python in the command line's syntax: the library's hints say `dims={'batch': 1}`."""

from __future__ import annotations

import ast
import re

SINGULAR = {"shapes": "shape", "dims": "dim", "constants": "constant", "links": "link"}
NAMES = (
    *(*SINGULAR, "arch", "device", "name", "numerics", "policy", "precision", "state", "target", "threads"),
    *("together", "tune_seconds"),
)
KEYWORD = re.compile(rf"""(?<![\w.-])({"|".join(NAMES)})=(?!=)(\{{[^{{}}]*\}}|\[[^\[\]]*\]|'[^']*'|"[^"]*"|[\d.]+)?""")


def option_of(name: str) -> str:
    """Return the option of a keyword of `rammer.compile`."""
    return "--" + SINGULAR.get(name, name.replace("_", "-"))


def in_options(text: str) -> str:
    """Return a text with options in place of keywords: `--dim batch=1`."""
    return KEYWORD.sub(lambda found: _options(option_of(found[1]), found[2] or ""), text)


def _options(option: str, value: str) -> str:
    try:
        given = ast.literal_eval(value)
    except (SyntaxError, ValueError):  # nothing, or an example with "…"
        return option
    if isinstance(given, dict):
        return " ".join(f"{option} {name}={_text(its, 'x')}" for name, its in given.items())
    return f"{option} {_text(given, ',')}"


def _text(value: object, between: str) -> str:
    return between.join(map(str, value)) if isinstance(value, tuple | list) else str(value)
