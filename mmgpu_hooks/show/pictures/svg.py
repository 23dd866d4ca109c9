"""A picture as SVG: inside the page, or as a file of its own."""

from __future__ import annotations

from collections.abc import Sequence

from mmgpu_hooks.show.markup import Markup, join, tag
from mmgpu_hooks.show.pictures.palette import color
from mmgpu_hooks.show.pictures.shapes import (
    FONT_SIZE,
    Area,
    Box,
    Label,
    Layer,
    Line,
    Mark,
    Picture,
    Point,
    Shape,
)

FONTS = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
MARGIN = 16.0
"""Paper around a picture that is a file of its own, in pixels."""
_AREA_OPACITY = '0.25'


def render_svg(picture: Picture) -> str:
    """A file of its own, on white, for papers and issues."""
    width, height = picture.width + 2 * MARGIN, picture.height + 2 * MARGIN
    ground = Box(-MARGIN, -MARGIN, width, height, 'paper')
    body = _body((ground, *picture.shapes), in_page=False)
    return tag(
        'svg',
        tag('title', picture.title),
        tag('desc', picture.description),
        body,
        xmlns='http://www.w3.org/2000/svg',
        width=_px(width),
        height=_px(height),
        viewBox=f'{_px(-MARGIN)} {_px(-MARGIN)} {_px(width)} {_px(height)}',
        font_family=FONTS,
        font_size=_px(FONT_SIZE),
    )


def render_inline(picture: Picture, css_class: str) -> Markup:
    """An element of the page, whose style sheet gives the colours."""
    return tag(
        'svg',
        _body(picture.shapes, in_page=True),
        class_=f'picture {css_class}',
        viewBox=f'0 0 {_px(picture.width)} {_px(picture.height)}',
        role='img',
        aria_label=f'{picture.title}. {picture.description}',
    )


def _body(shapes: Sequence[Shape], *, in_page: bool) -> Markup:
    return join(*(_shape(shape, in_page) for shape in shapes))


def _shape(shape: Shape, in_page: bool) -> Markup:
    if isinstance(shape, Layer):
        return tag('g', _body(shape.shapes, in_page=in_page), data_layer=shape.name)
    paint = f'var(--{shape.role})' if in_page else color(shape.role)
    if isinstance(shape, Box):
        return tag(
            'rect',
            _tip(shape.tip),
            x=_px(shape.x),
            y=_px(shape.y),
            width=_px(shape.width),
            height=_px(shape.height),
            fill=paint,
        )
    if isinstance(shape, Line):
        return tag(
            'path',
            d=path_data(shape.points),
            fill='none',
            stroke=paint,
            stroke_width=_px(shape.width),
            stroke_dasharray=shape.dash or None,
            stroke_linejoin='round',
        )
    if isinstance(shape, Area):
        return tag(
            'path',
            d=path_data(shape.points, closed=True),
            fill=paint,
            fill_opacity=_AREA_OPACITY,
        )
    if isinstance(shape, Label):
        return tag(
            'text',
            shape.text,
            x=_px(shape.x),
            y=_px(shape.y),
            fill=paint,
            text_anchor=None if shape.anchor == 'start' else shape.anchor,
            font_size=None if shape.size == FONT_SIZE else _px(shape.size),
            font_weight='600' if shape.bold else None,
        )
    outline = [mark_outline(shape)]
    return tag('path', _tip(shape.tip), d=path_data(outline, closed=True), fill=paint)


def _tip(words: str) -> Markup | None:
    return tag('title', words) if words else None


def mark_outline(mark: Mark) -> list[Point]:
    """The corners of a mark's shape."""
    x, y, half = mark.x, mark.y, mark.size / 2
    if mark.kind == 'triangle':
        return [(x - half, y - half), (x + half, y - half), (x, y + half)]
    if mark.kind == 'bar':
        return [
            (x - 1, y - half),
            (x + 1, y - half),
            (x + 1, y + half),
            (x - 1, y + half),
        ]
    if mark.kind == 'diamond':
        return [(x, y - half), (x + half, y), (x, y + half), (x - half, y)]
    part = 0.41421 * half  # an octagon: a circle at this size
    return [
        *((x + half, y - part), (x + half, y + part)),
        *((x + part, y + half), (x - part, y + half)),
        *((x - half, y + part), (x - half, y - part)),
        *((x - part, y - half), (x + part, y - half)),
    ]


def path_data(lines: Sequence[Sequence[Point]], *, closed: bool = False) -> str:
    """The ``d`` of a path element, to a tenth of a pixel."""
    parts = []
    for line in lines:
        if line:
            corners = 'L'.join(f'{_px(x)},{_px(y)}' for x, y in line)
            parts.append(f'M{corners}{"Z" if closed else ""}')
    return ''.join(parts)


def _px(value: float) -> str:
    return f'{value:.1f}'.rstrip('0').rstrip('.')
