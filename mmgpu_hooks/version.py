"""Version number of the package; ``setup.py`` reads it from this file's text."""

__version__ = '0.2.0'
