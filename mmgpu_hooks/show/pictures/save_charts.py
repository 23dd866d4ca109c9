"""Checkpoint saves by phase, and by what the saving thread waited for."""

from __future__ import annotations

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import SAVE_PHASES, SaveRecord
from mmgpu_hooks.show.figures import format_seconds
from mmgpu_hooks.show.pictures.bars import Bar, Segment
from mmgpu_hooks.show.pictures.chart import Chart, NoChart, chart_bars

SAVES_SHOWN = 12
_PHASE_ROLES = {
    'copy': 'step',
    'serialise': 'hooks',
    'write': 'data_wait',
    'rest': 'other',
}
CAUSES = (
    ('on a core', 'cpu_s', 'step'),
    ('waiting for a core', 'run_delay_s', 'data_wait'),
    ('blocked', 'blocked_s', 'checkpoint_save'),
)


def chart_save_phases(summary: Run) -> Chart | NoChart:
    """One bar a save, longest first."""
    name, title = 'saves-by-phase', 'Saves by phase'
    saves = [save for save in longest_saves(summary) if save.phases]
    if not saves:
        return NoChart(name, title, why_no_saves(summary))
    bars = [
        Bar(
            name_save(save),
            tuple(
                _segment(phase, save.phases[phase].wall_s, _PHASE_ROLES[phase])
                for phase in SAVE_PHASES
                if phase in save.phases
            ),
            format_seconds(save.wall_s),
        )
        for save in saves
    ]
    return chart_bars(name, title, _describe(bars, summary), bars)


def chart_save_causes(summary: Run) -> Chart | NoChart:
    """One bar a save: computing, waiting for a core, waiting for anything else."""
    name, title = 'saves-by-cause', 'Saves by what they waited for'
    told = [
        save
        for save in longest_saves(summary)
        if None not in (save.cpu_s, save.run_delay_s, save.blocked_s)
    ]
    if not told:
        saves = summary.save_records
        reasons = [why for save in saves for why in save.unknown.values()]
        why = f'{reasons[0]}.' if reasons else 'The scheduler did not tell.'
        return NoChart(name, title, why if saves else why_no_saves(summary))
    bars = [
        Bar(
            name_save(save),
            tuple(
                _segment(words, getattr(save, field), role)
                for words, field, role in CAUSES
            ),
            format_seconds(save.wall_s),
        )
        for save in told
    ]
    return chart_bars(name, title, _describe(bars, summary), bars)


def longest_saves(summary: Run) -> list[SaveRecord]:
    """Those that took most, as many as are shown."""
    return sorted(summary.save_records, key=lambda save: -save.wall_s)[:SAVES_SHOWN]


def name_save(save: SaveRecord) -> str:
    """Its file, or when it was."""
    return save.name or f'{save.occasion}, iteration {save.iteration}'


def _segment(name: str, seconds: float, role: str) -> Segment:
    return Segment(name, seconds, format_seconds(seconds), role)


def _describe(bars: list[Bar], summary: Run) -> str:
    said = '; '.join(
        f'{bar.label} {bar.text} ('
        + ', '.join(f'{part.name} {part.text}' for part in bar.segments)
        + ')'
        for bar in bars
    )
    return f'{len(bars)} of {len(summary.save_records)} save(s): {said}.'


def why_no_saves(summary: Run) -> str:
    """Why there is no save to show, of a run without records of them."""
    if not summary.saves:
        return 'No checkpoint was saved.'
    seconds = format_seconds(summary.ledger_s.get('checkpoint_save'))
    return (
        f'{summary.saves} save(s) took {seconds} in all; this evidence does not take '
        'them apart.'
    )
