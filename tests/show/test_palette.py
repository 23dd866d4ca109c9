"""Contrast as WCAG 2.2 asks: 4.5 for text, 3 for what must be seen."""

from __future__ import annotations

import pytest

from mmgpu_hooks.schema.parts import PARTS
from mmgpu_hooks.show.pictures.palette import COLORS, ON_FILL


def luminance(color: str) -> float:
    """Relative luminance, WCAG 2.2."""
    parts = [int(color[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio, WCAG 2.2."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize('dark', [False, True])
@pytest.mark.parametrize('ground', ['paper', 'panel'])
@pytest.mark.parametrize('role', ['ink', 'faint', 'accent', 'problem', 'notice', 'ok'])
def test_text_can_be_read(role, ground, dark):
    assert contrast(COLORS[role][dark], COLORS[ground][dark]) >= 4.5


@pytest.mark.parametrize('dark', [False, True])
@pytest.mark.parametrize('role', [*PARTS, 'gpu'])
def test_fills_can_be_seen_and_text_on_them_be_read(role, dark):
    fill = COLORS[role][dark]
    assert contrast(fill, COLORS['paper'][dark]) >= 3
    if role != 'gpu':
        assert contrast(fill, ON_FILL['dark' if dark else 'light']) >= 4.5
