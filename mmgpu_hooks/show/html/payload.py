"""What the page's script gets of a run over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from mmgpu_hooks.show.html.packed import pack_counts, pack_figures, pack_floats
from mmgpu_hooks.show.pictures.bars import WIDTHS
from mmgpu_hooks.show.pictures.scales import Scale
from mmgpu_hooks.show.pictures.timeline import Timeline, Track
from mmgpu_hooks.show.pictures.timeline_picture import (
    MARK_ROLES,
    MARKS,
    lay_out,
    shown_tracks,
    thin_moments,
)

_MOMENTS = 3000.0
"""Of a kind; more than a screen has pixels to show even when zoomed in far."""


def pack_timeline(timeline: Timeline, reaches: Mapping[str, float]) -> dict[str, Any]:
    """A timeline as JSON."""
    tracks = shown_tracks(timeline)
    across = Scale(timeline.begin_s, timeline.end_s, 0.0, _MOMENTS)
    return {
        'begin': timeline.begin_s,
        'starts': pack_floats(timeline.starts_s),
        'ends': pack_floats(timeline.ends_s),
        'iterations': pack_counts(timeline.iterations),
        'lasts': pack_counts(timeline.last_iterations),
        'tracks': [
            {**_pack_track(track, timeline.merged > 1), 'reach': reaches[track.title]}
            for track in tracks
        ],
        'moments': [
            {
                'kind': kind,
                'mark': MARKS[kind],
                'role': MARK_ROLES[kind],
                'at': [round(moment.at_s, 3) for moment, _ in thinned],
                'words': [moment.words for moment, _ in thinned],
                'counts': [count for _, count in thinned],
            }
            for kind in MARKS
            if (thinned := thin_moments(timeline.moments, kind, across, 1.0))
        ],
        'layouts': {
            css: asdict(lay_out(len(tracks), width)) for css, width in WIDTHS.items()
        },
    }


def _pack_track(track: Track, is_merged: bool) -> dict[str, Any]:
    cells = track.cells
    packed: dict[str, Any] = {
        'title': track.title,
        'unit': track.unit,
        'role': track.role,
        'mean': pack_figures([cell.mean if cell else None for cell in cells]),
    }
    if is_merged:
        packed['low'] = pack_figures([cell.low if cell else None for cell in cells])
        packed['high'] = pack_figures([cell.high if cell else None for cell in cells])
    return packed
