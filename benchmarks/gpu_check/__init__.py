"""What only a CUDA machine can show: our figures against somebody else's."""
