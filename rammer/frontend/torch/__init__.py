"""Import PyTorch graphs of core ATen as a Graph. Needs torch, so other modules import this package only on demand."""

from __future__ import annotations

from rammer.frontend.torch import movement, network, pointwise, recurrent, reduction  # noqa: F401  (they register)
from rammer.frontend.torch.decompositions import decompositions
from rammer.frontend.torch.export import from_module
from rammer.frontend.torch.importer import import_nodes, unsupported_reason
from rammer.frontend.torch.recurrent import replace_layers
from rammer.frontend.torch.writer import to_array, to_tensor

__all__ = [
    "decompositions",
    "from_module",
    "import_nodes",
    "replace_layers",
    "to_array",
    "to_tensor",
    "unsupported_reason",
]
