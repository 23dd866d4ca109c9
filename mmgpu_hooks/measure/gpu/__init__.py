"""The driver's view of the GPUs, through NVML."""
