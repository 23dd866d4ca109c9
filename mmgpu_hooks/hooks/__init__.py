"""Adapters between an MMEngine Runner and the measuring code of mmgpu_hooks."""
