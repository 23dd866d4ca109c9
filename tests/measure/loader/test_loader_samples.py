from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mmgpu_hooks.measure.loader.board import TOP_TEXT
from mmgpu_hooks.measure.loader.worker import describe_sample


class Hostile:
    """An object whose attributes do something."""

    @property
    def img_id(self) -> int:
        raise RuntimeError('not now')


@pytest.mark.parametrize(
    ('sample', 'name'),
    [
        ({'data_samples': SimpleNamespace(img_id=4, img_path='a/b.jpg')}, '4 a/b.jpg'),
        ({'data_samples': {'sup': None, 'un': SimpleNamespace(img_id=4)}}, '4'),
        (('image', {'image_id': 9}), '9'),
        ({'img_path': 'x.png'}, 'x.png'),
        ({'img_id': 0, 'img_path': None}, '0'),
        ('text', ''),
        (None, ''),
        ([], ''),
        ({'data_samples': Hostile()}, ''),
    ],
)
def test_a_sample_is_named_by_what_it_tells(sample: Any, name: str):
    assert describe_sample(sample) == name


@pytest.mark.parametrize('path', ['x/' * 200 + 'y.png', '\u00fc' * 300 + '.png'])
def test_of_a_long_path_the_end_stays(path: str):
    name = describe_sample({'img_id': 12, 'img_path': path})
    head, tail = name.split('...')
    assert head == '12 '
    assert path.endswith(tail)
    assert TOP_TEXT - 2 <= len(name.encode()) <= TOP_TEXT
