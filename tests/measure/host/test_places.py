"""Tests the file systems of paths, and the position of GPUs relative to CPUs."""

from __future__ import annotations

import pytest

from mmgpu_hooks.measure.mounts import Mount, parse_mounts, read_mount
from mmgpu_hooks.measure.topology import parse_cpu_list, read_device_place
from mmgpu_hooks.schema.figures import format_numbers

MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw
40 22 0:50 / /mnt/data rw - nfs4 store:/data rw
41 40 0:51 / /mnt/data rw - lustre 10.0.0.1@o2ib:/l rw
42 22 0:52 / /mnt/my\040set rw - fuse.sshfs host: rw
43 22 0:53 / /mnt/dat rw - xfs /dev/sdb rw
this line is torn
"""


@pytest.mark.parametrize(
    ('path', 'mount'),
    [
        ('/home/a', Mount('/', 'ext4')),
        # the later mount hides the earlier one
        ('/mnt/data/coco', Mount('/mnt/data', 'lustre')),
        ('/mnt/data', Mount('/mnt/data', 'lustre')),
        ('/mnt/database', Mount('/', 'ext4')),
        ('/mnt/my set/x', Mount('/mnt/my set', 'fuse.sshfs')),
        ('/mnt/dat/x', Mount('/mnt/dat', 'xfs')),
    ],
)
def test_the_innermost_and_latest_mount_of_a_path_counts(path, mount):
    assert parse_mounts(MOUNTS, path) == mount


@pytest.mark.parametrize(
    ('kind', 'is_network'),
    [
        ('nfs', True),
        ('nfs4', True),
        ('cifs', True),
        ('lustre', True),
        ('fuse.sshfs', True),
        ('fuse.s3fs', True),
        ('fuse.fuse-overlayfs', False),
        ('fuseblk', False),
        ('overlay', False),
        ('ext4', False),
        ('tmpfs', False),
    ],
)
def test_which_file_systems_are_on_another_host(kind, is_network):
    assert Mount('/x', kind).is_network is is_network


def test_without_proc_nothing_is_known_of_mounts(tmp_path):
    (tmp_path / 'self').mkdir()
    (tmp_path / 'self' / 'mountinfo').write_text(MOUNTS)
    assert read_mount('/mnt/dat', tmp_path) == Mount('/mnt/dat', 'xfs')
    assert read_mount('/mnt/dat', tmp_path / 'nowhere') is None


@pytest.mark.parametrize(
    ('node', 'cpus', 'place'),
    [
        ('1\n', '32-34,96\n', (1, (32, 33, 34, 96))),
        ('-1\n', '0-3\n', (None, None)),
        ('0\n', 'garbage\n', (0, None)),
        (None, None, (None, None)),
    ],
)
def test_the_numa_node_and_cpus_of_a_card_are_read_or_unknown(
    tmp_path, node, cpus, place
):
    folder = tmp_path / 'bus' / 'pci' / 'devices' / '0000:3b:00.0'
    folder.mkdir(parents=True)
    for name, text in (('numa_node', node), ('local_cpulist', cpus)):
        if text is not None:
            (folder / name).write_text(text)
    for written in ('00000000:3B:00.0', '0000:3B:00.0', '0000:3b:00.0'):
        assert read_device_place(written, tmp_path) == place


def test_lists_of_cpus_are_parsed_and_formatted_as_ranges():
    assert parse_cpu_list('0-2,8\n') == (0, 1, 2, 8)
    assert parse_cpu_list('\n') == ()
    assert format_numbers((8, 0, 1, 2)) == '0-2,8'
    assert format_numbers(()) == ''
