"""Translate each ONNX operator to rOperators: one handler per operator. Importing this package registers them all."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
