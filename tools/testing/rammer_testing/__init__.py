"""Test rammer with tools: a fuzzer, ONNX's backend suite, mutation testing. Not part of the compiler's wheel."""
