"""Edits the dataloader settings of a config file and proves the result.

Importing this package costs nothing: take ``rewrite_config`` from
``mmgpu_hooks.config.rewrite``.
"""
