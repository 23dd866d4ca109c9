"""Keeps our frames out of the user's tracebacks."""

from __future__ import annotations


def hide_frame(error: BaseException) -> None:
    """Take the frame that caught an error out of its traceback.

    For use right before a bare ``raise``, which from Python 3.11 on goes on with the
    traceback that the error then has; earlier versions show the frame.

    Args:
        error: As caught.
    """
    traceback = error.__traceback__
    if traceback is not None:
        error.__traceback__ = traceback.tb_next
