"""Module for ``custom_imports`` that binds the importing thread to one CPU."""

import os

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
