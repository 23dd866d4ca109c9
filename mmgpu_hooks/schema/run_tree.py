"""Finds the evidence files of all training runs below some folders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_EVIDENCE_START = 'gpu_efficiency'
_EVIDENCE = re.compile(_EVIDENCE_START + r'(?:\.\d+)?\.jsonl')
"""Pattern of the names of rank 0's evidence files.

A number is of a Runner that trained again.
"""
_DATA_FOLDER = 'vis_data'
"""Name of the folder that holds MMEngine's data of a run.

Images that a visualiser drew lie below it, by the thousand.
"""


class FoundEvidence(NamedTuple):
    """Evidence file of rank 0 of one run, with its owner."""

    path: str
    owner_id: int
    """Id of the user that owns the folder with the evidence."""


class Unreadable(NamedTuple):
    """Folder or file that could not be read, with the reason."""

    path: str
    reason: str
    """Reason why the path could not be read, in the operating system's words."""


class RunTree:
    """Iterable of the evidence files of all training runs below some folders.

    Links to folders are followed, and each folder is entered once, so that loops end. A
    link to a folder that holds one of the roots is passed over: it leads to all that
    the user did not name. Hidden folders are passed over, too.

    Args:
        roots: Folders to walk, or evidence files.

    Attributes:
        unreadable: Folders that could not be listed, so far.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        self.unreadable: list[Unreadable] = []
        self._roots = [str(root) for root in roots]
        self._real_roots = [os.path.realpath(root) for root in self._roots]
        self._entered: set[tuple[int, int]] = set()
        """Device and inode of each folder that was entered."""

    def __iter__(self) -> Iterator[FoundEvidence]:
        # links come after all folders, so that a run is shown by its own path
        links: list[str] = []
        for root in self._roots:
            if _EVIDENCE.fullmatch(os.path.basename(root)) and os.path.isfile(root):
                yield FoundEvidence(root, os.stat(os.path.dirname(root) or '.').st_uid)
            elif os.path.isdir(root):
                yield from self._walk(root, links)
        while links:
            link = links.pop()
            if not self._holds_root(os.path.realpath(link)):
                yield from self._walk(link, links)

    def _holds_root(self, target: str) -> bool:
        prefix = target.rstrip(os.sep) + os.sep
        return any(f'{root}{os.sep}'.startswith(prefix) for root in self._real_roots)

    def _walk(self, start: str, links: list[str]) -> Iterator[FoundEvidence]:
        folders = [start]
        while folders:
            folder = folders.pop()
            try:
                status = os.stat(folder)
                identity = (status.st_dev, status.st_ino)
                if identity in self._entered:
                    continue
                self._entered.add(identity)
                with os.scandir(folder) as listed:
                    entries = list(listed)
            except OSError as error:
                reason = error.strerror or str(error)
                self.unreadable.append(Unreadable(folder, reason))
                continue
            is_leaf = folder.rpartition(os.sep)[2] == _DATA_FOLDER
            for entry in entries:
                name = entry.name
                # most names are of other files, and need no expression
                if name.startswith(_EVIDENCE_START) and _EVIDENCE.fullmatch(name):
                    # a folder of that name is refused when it is opened
                    yield FoundEvidence(entry.path, status.st_uid)
                elif not is_leaf and not name.startswith('.'):
                    self._sort(entry, folders, links)

    def _sort(
        self, entry: os.DirEntry[str], folders: list[str], links: list[str]
    ) -> None:
        """Adds a folder to ``folders``, or a link to a folder to ``links``."""
        try:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.is_symlink() and entry.is_dir():
                links.append(entry.path)
        except OSError as error:  # links that lead to each other, or where none may go
            reason = error.strerror or str(error)
            self.unreadable.append(Unreadable(entry.path, reason))
