"""Torch on CUDA: events, the allocator, the tensors of the model."""
