"""Run ONNX's backend suite: `python -m rammer.testing.onnx_suite`. The tool is `tools/testing` in the repository."""

from rammer.testing.tools import run

if __name__ == "__main__":
    run("onnx_suite")
