"""Every operator, once, as a tensor expression."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rammer.ir.operator import OpDef
from rammer.ir.ops import conv, elementwise, matmul, pool

OPS: Mapping[str, OpDef] = MappingProxyType(
    {d.name: d for module in (elementwise, matmul, conv, pool) for d in module.DEFINITIONS}
)
