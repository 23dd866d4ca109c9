"""Tests finding the config line that names the hook, for advice on hand edits."""

from __future__ import annotations

import pytest

from mmgpu_hooks.config.hook_line import HookLine, find_hook_line

LISTED = """\
# mine
custom_hooks = [
    dict(type='EMAHook'),
    dict(
        type='mmgpu_hooks.GPUEfficiencyHook',
        interval=5,
    ),
]
"""


@pytest.mark.parametrize(
    ('text', 'line'),
    [
        (LISTED, 5),
        (LISTED.replace('mmgpu_hooks.', ''), 5),
        ("custom_hooks = [{'interval': 5, 'type': 'GPUEfficiencyHook'}]\n", 1),
        ('custom_hooks = []\n', None),
        ("note = 'GPUEfficiencyHook'\n", None),
        ("raise ValueError('no config')\n", None),
    ],
    ids=['call', 'short name', 'dict', 'none', 'a word alone', 'does not load'],
)
def test_the_line_that_names_the_type_of_the_hook_is_found(tmp_path, text, line):
    path = tmp_path / 'mine.py'
    path.write_text(text)
    assert find_hook_line(path) == (None if line is None else HookLine(path, line))


def test_a_hook_in_a_base_is_found_unless_the_child_has_one(tmp_path):
    (tmp_path / 'base.py').write_text(LISTED)
    child = tmp_path / 'child.py'
    child.write_text("_base_ = 'base.py'\n")
    found = find_hook_line(child)
    assert found is not None
    assert (found.path.name, found.line) == ('base.py', 5)
    child.write_text("_base_ = 'base.py'\n\n" + LISTED)
    assert find_hook_line(child) == HookLine(child, 7)
