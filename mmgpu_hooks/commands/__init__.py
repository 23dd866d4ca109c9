"""Commands of ``mmgpu``, the only modules that print or exit the process."""
