"""Define every operator once, as a tensor expression. Each module that defines some lists them as DEFINITIONS."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

from rammer.ir.operator import OpDef

_MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]

OPS: Mapping[str, OpDef] = MappingProxyType({d.name: d for m in _MODULES for d in getattr(m, "DEFINITIONS", ())})
