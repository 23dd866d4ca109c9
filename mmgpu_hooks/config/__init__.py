"""Edits settings in a config file's text, and checks the result by loading it.

Importing this package costs nothing: take ``rewrite_config`` from
``mmgpu_hooks.config.rewrite``.
"""
