"""A picture as PNG, drawn by matplotlib, which MMDetection brings along."""

from __future__ import annotations

import io
from typing import Any

from mmgpu_hooks.show.pictures.palette import color
from mmgpu_hooks.show.pictures.shapes import Area, Box, Label, Layer, Line, Picture
from mmgpu_hooks.show.pictures.svg import MARGIN, mark_outline

_DPI = 192
"""Twice what a page has, so that print is sharp."""
_POINTS = 72 / 96
"""Of a pixel."""
_ANCHORS = {'start': 'left', 'middle': 'center', 'end': 'right'}


class PngMissingError(Exception):
    """matplotlib is not installed; the message says what to do."""


def render_png(picture: Picture) -> bytes:
    """The bytes of a PNG file, two pixels for each of the picture's.

    Raises:
        PngMissingError: If matplotlib cannot be imported.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PngMissingError(
            f'expected matplotlib to draw PNG files, found none ({error}); '
            "run `pip install 'mmgpu_hooks[plots]'`, or take --format svg."
        ) from error
    right, bottom = picture.width + MARGIN, picture.height + MARGIN
    size = ((right + MARGIN) / 96, (bottom + MARGIN) / 96)
    figure = Figure(figsize=size, dpi=_DPI)
    figure.patch.set_facecolor(color('paper'))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-MARGIN, right))
    axes.set_ylim(bottom, -MARGIN)
    axes.axis('off')
    for shape in picture.shapes:
        _draw(axes, shape)
    buffer = io.BytesIO()
    facts = {'Title': picture.title, 'Description': picture.description}
    figure.savefig(buffer, format='png', dpi=_DPI, metadata=facts)
    return buffer.getvalue()


def _draw(axes: Any, shape: Any) -> None:
    if isinstance(shape, Layer):
        for inner in shape.shapes:
            _draw(axes, inner)
        return
    paint = color(shape.role)
    if isinstance(shape, Label):
        axes.text(
            shape.x,
            shape.y,
            # mathtext would set what stands between dollar signs
            shape.text.replace('$', r'\$'),
            color=paint,
            ha=_ANCHORS[shape.anchor],
            va='baseline',
            fontsize=shape.size * _POINTS * 0.92,
            fontweight='bold' if shape.bold else 'normal',
        )
    elif isinstance(shape, Line):
        dash = tuple(float(part) * _POINTS for part in shape.dash.split())
        for line in shape.points:
            xs, ys = zip(*line)
            axes.plot(
                xs,
                ys,
                color=paint,
                linewidth=shape.width * _POINTS,
                linestyle=(0, dash) if dash else 'solid',
            )
    elif isinstance(shape, Area):
        for line in shape.points:
            xs, ys = zip(*line)
            axes.fill(xs, ys, color=paint, alpha=0.25, linewidth=0)
    elif isinstance(shape, Box):
        right, low = shape.x + shape.width, shape.y + shape.height
        xs, ys = (shape.x, right, right, shape.x), (shape.y, shape.y, low, low)
        axes.fill(xs, ys, color=paint, linewidth=0)
    else:
        xs, ys = zip(*mark_outline(shape))
        axes.fill(xs, ys, color=paint, linewidth=0)
