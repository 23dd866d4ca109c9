"""Edits settings in the text of a config file, and proves the result by loading it.

Importing this package costs nothing: take ``rewrite_config`` from
``mmgpu_hooks.config.rewrite``.
"""
