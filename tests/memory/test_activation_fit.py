from __future__ import annotations

import pytest

from mmgpu_hooks.memory.estimate import fit_activations, predict_activations
from mmgpu_hooks.schema.memory import ActivationPoint


def planted(batch: int, side: int, **parts: float) -> ActivationPoint:
    pixels = side * side
    size = (
        parts.get('fixed', 0)
        + batch * parts.get('image', 0)
        + batch * pixels * parts.get('pixel', 0)
        + batch * pixels**2 * parts.get('squared', 0)
    )
    return ActivationPoint(batch, side, side, round(size))


LAWS = [
    {'pixel': 1600},
    {'pixel': 1200, 'image': 30e6},
    {'pixel': 1200, 'fixed': 20e6},
    {'pixel': 1300, 'squared': 3e-4},
    {'pixel': 1300, 'squared': 3e-4, 'image': 9e6, 'fixed': 8e6},
]


@pytest.mark.parametrize('law', LAWS)
def test_a_planted_growth_is_found(law):
    points = [
        planted(batch, side, **law)
        for batch, side in [(2, 256), (1, 256), (2, 384), (1, 384), (1, 512)]
    ]
    fit = fit_activations(points)
    assert fit.residual_pct <= 0.5
    far = planted(32, 1024, **law)
    assert predict_activations(fit, 32, 1024 * 1024) == pytest.approx(
        far.saved_bytes, rel=0.02
    )


def test_noise_makes_no_curve():
    # half a per cent up and down: a curve through it would be far off at 1024
    noise = (1.004, 0.996, 1.003, 0.997, 1.004)
    places = [(2, 256), (1, 256), (2, 384), (1, 384), (1, 512)]
    points = [
        ActivationPoint(b, s, s, round(n * b * s * s * 1600))
        for n, (b, s) in zip(noise, places, strict=True)
    ]
    fit = fit_activations(points)
    assert (fit.squared_pixel_bytes, fit.image_bytes, fit.fixed_bytes) == (0, 0, 0)
    assert fit.pixel_bytes == pytest.approx(1600, rel=0.005)
    assert fit.residual_pct == pytest.approx(0.4, abs=0.1)
