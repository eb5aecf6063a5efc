"""Make models of many families by their own exporters, each with inputs, for `rammer.testing.onnx_suite --models`."""
