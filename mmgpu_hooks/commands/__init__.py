"""The commands of ``mmgpu``: the only package that prints or exits."""
