"""Golden files: emitted text that changes only on purpose."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


class Golden:
    """Compares text with tests/golden/<test file>/<test name>.txt, a path derived from the test alone."""

    def __init__(self, node: pytest.Item, update: bool) -> None:
        folder = Path(str(node.config.rootpath)) / "tests" / "golden" / Path(str(node.path)).stem
        self.path = folder / (re.sub(r"[^\w.-]+", "_", node.name).strip("_") + ".txt")
        self.update = update

    def check(self, text: str) -> None:
        """Fail with the command that accepts the change, if the text differs from the file."""
        if self.update:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(text, encoding="utf-8")
            return
        command = "run pytest with --update-golden, and read the diff"
        if not self.path.exists():
            pytest.fail(f"{self.path} does not exist: {command}")
        assert text == self.path.read_text(encoding="utf-8"), f"{self.path.name} differs; if that is meant, {command}"
