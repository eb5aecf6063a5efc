"""Parse and check options of policies, and print them in plans.

A policy with options is a dataclass. Its fields by `option` are options; their metadata describe the values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rammer.errors import PolicyError, did_you_mean

if TYPE_CHECKING:
    from rammer.ir.device import VDeviceSpec
    from rammer.ir.graph import Graph
    from rammer.ir.kernel import Tuning

EXAMPLE = "for example wavefront:selection=fastest,beyond=off"


class PolicyOption(NamedTuple):
    """An option of a policy: its values, with a description of each."""

    name: str
    values: dict[str, str]
    default: object


def option(**values: str) -> Any:
    """Return a field that is an option: its values, the default first, each with a description.

    `cuts: Literal["on", "off"] = option(on="…", off="…")`
    """
    return field(default=next(iter(values)), metadata=values)


def options_of(make: object) -> tuple[PolicyOption, ...]:
    """Return the options of a policy or of its class; none if it is not a dataclass."""
    if not is_dataclass(make):
        return ()
    return tuple(PolicyOption(f.name, dict(f.metadata), f.default) for f in fields(make) if f.init and f.metadata)


def parse_policy(text: str) -> tuple[str, dict[str, str]]:
    """Parse `name` or `name:option=value,…` into the name and options. Raises PolicyError."""
    name, colon, rest = text.partition(":")
    given: dict[str, str] = {}
    for part in rest.split(",") if colon else ():
        key, _, value = (word.strip() for word in part.partition("="))
        if not (key and value):
            raise PolicyError(f"policy {text!r}: {part!r} is no OPTION=VALUE", hint=EXAMPLE)
        if key in given:
            raise PolicyError(f"policy {text!r}: option {key!r} is given twice", hint="give it once")
        given[key] = value
    return name.strip(), given


def split_policies(text: str) -> list[str]:
    """Split a comma-separated list of policies.

    Options contain commas, too: `sequential,wavefront:beyond=off,sync=global` has two policies.
    """
    return [part.strip() for part in re.split(r",(?![^,:]*=)", text) if part.strip()]


def check_options(name: str, make: object, given: Mapping[str, object]) -> None:
    """Raise PolicyError for an option that the policy does not have, or a value that the option does not have."""
    known = {option.name: option for option in options_of(make)}
    for key, value in given.items():
        if key not in known:
            raise PolicyError(
                f"policy {name!r} has no option {key!r}, but {', '.join(known) or 'none at all'}",
                hint=did_you_mean(str(key), known) or "`rammer doctor` lists policies and their options",
            )
        if value not in (values := list(known[key].values)):
            raise PolicyError(
                f"policy {name!r}: {key} is {' or '.join(map(repr, values))}, not {value!r}",
                hint=did_you_mean(str(value), values) or "`rammer doctor` says what they mean",
            )


def tuning_of(policy: object, graph: Graph, spec: VDeviceSpec) -> Tuning:
    """Return a policy's `tuning(graph, spec)`, or the default if it has no such method."""
    from rammer.ir.kernel import USUAL

    asked = getattr(policy, "tuning", None)
    found: Tuning = asked(graph, spec) if asked else USUAL
    return found


def described(policy: object, name: str) -> str:
    """Return a policy as text that parses to the same one: its name, and options that are not the default."""
    chosen = [(o.name, getattr(policy, o.name)) for o in options_of(policy) if getattr(policy, o.name) != o.default]
    return name + (":" + ",".join(f"{key}={value}" for key, value in chosen) if chosen else "")
