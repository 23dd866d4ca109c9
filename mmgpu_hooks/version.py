"""Version of the package; ``setup.py`` reads this file as text."""

__version__ = '0.2.0'
