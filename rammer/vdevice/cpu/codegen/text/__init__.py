"""Read the C files of this folder: the definitions that kernels use."""

from rammer.vdevice.ctext.files import text_of


def c_text(name: str) -> str:
    """Return the C file of a name. Raises ToolchainError if it cannot be read."""
    return text_of(__name__, f"{name}.h")
