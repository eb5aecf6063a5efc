"""Import PyTorch graphs of core ATen as a Graph. Needs torch, so other modules import this package only on demand."""

from __future__ import annotations

from rammer_torch import movement, network, pointwise, recurrent, reduction  # noqa: F401  (they register)
from rammer_torch.decompositions import decompositions
from rammer_torch.export import from_module
from rammer_torch.importer import import_nodes, unsupported_reason
from rammer_torch.recurrent import replace_layers
from rammer_torch.writer import to_array, to_tensor

__all__ = [
    "decompositions",
    "from_module",
    "import_nodes",
    "replace_layers",
    "to_array",
    "to_tensor",
    "unsupported_reason",
]
