"""Adapters for ONNX's backend interface, torch.compile and Dask."""
