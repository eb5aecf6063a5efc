"""Adapt rammer to ONNX's backend interface, torch.compile and Dask."""
