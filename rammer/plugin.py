"""What authors of backends, kernels and policies need, besides what `rammer` exports. The stub says from where.

It is experimental (docs/versioning.md): a minor release may change it, and the CHANGELOG says how.
"""

from rammer.lazily import exports

__getattr__, __all__ = exports(__name__, "plugin.pyi", globals())


def __dir__() -> list[str]:
    """Return all names, imported or not."""
    return __all__
