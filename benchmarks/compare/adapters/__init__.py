"""Run ONNX files by compilers that do not read them, or not alone."""
