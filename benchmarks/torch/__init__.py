"""Measure torch.compile and PyTorch's models."""
