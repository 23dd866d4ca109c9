"""Version of the package, which ``setup.py`` parses from this file's text."""

__version__ = '0.2.0'
