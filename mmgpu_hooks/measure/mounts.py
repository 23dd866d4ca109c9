"""Finds the mounted file system that holds a path, and if it is a network one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

NETWORK = re.compile(
    r'nfs\d?|cifs|smb\d?|smbfs|afs|ceph|lustre|gpfs|beegfs|panfs|pvfs2|orangefs|'
    r'wekafs|glusterfs|fuse\.(?!fuse-overlayfs|overlayfs|lxcfs|portal|'
    r'gvfsd-fuse|ntfs|exfat|mergerfs|unionfs).+'
)
"""Regex for types of network file systems, such as NFS.

Of those in user space (FUSE) only a few are known to be local."""


class Mount(NamedTuple):
    """A mounted file system: its mount point and its type."""

    point: str
    kind: str
    """Type of the file system as the kernel names it, such as ``ext4``."""

    @property
    def is_network(self) -> bool:
        """True if the file system's type is a network one, such as NFS."""
        return NETWORK.fullmatch(self.kind) is not None


def read_mount(path: str, proc: Path = Path('/proc')) -> Mount | None:
    """Finds the file system that holds a path, without access to the path itself.

    Args:
        path: Absolute, without links; need not exist.
        proc: Root of the proc file system.

    Returns:
        The mount; ``None`` where the platform does not list them.
    """
    try:
        text = (proc / 'self' / 'mountinfo').read_text(errors='replace')
    except OSError:
        return None
    return parse_mounts(text, path)


def parse_mounts(text: str, path: str) -> Mount | None:
    """Finds the mount that holds a path, in the text of ``/proc/self/mountinfo``.

    A line has the mount point as its fifth field and the kind behind a lone hyphen; of
    two at the same place the later one hides the earlier::

        36 35 98:0 /mnt1 /data/my\\040set rw,noatime shared:1 - nfs4 host:/x rw

    Args:
        text: The file.
        path: Absolute, without links.
    """
    found: Mount | None = None
    for line in text.splitlines():
        head, hyphen, tail = line.partition(' - ')
        fields, kinds = head.split(' '), tail.split(' ')
        if not hyphen or len(fields) < 5:
            continue
        point = re.sub(r'\\([0-7]{3})', lambda code: chr(int(code[1], 8)), fields[4])
        is_above = path == point or path.startswith(point.rstrip('/') + '/')
        if is_above and (found is None or len(point) >= len(found.point)):
            found = Mount(point, kinds[0])
    return found
