"""Tests that the demo's final answer agrees with ``mmgpu compare``."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.compared_runs import DRIFTING_AFTER_S, DRIFTING_BEFORE_S, make_timed_run
from fakes.runs import make_loader, write_run
from golden.trainings import DEMO
from mmgpu_hooks.commands.demo import show_gain
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.schema.judged import FASTER, NO_DIFFERENCE, SLOWER, RunComparison
from mmgpu_hooks.show.comparison import describe_whole_training

GOLDEN = Path(__file__).parents[1] / 'golden'


@pytest.mark.parametrize('kind', ['recorded', 'drifting'])
def test_the_demo_says_what_compare_says_and_adds_the_whole_training(
    kind, tmp_path, capsys
):
    before, after = (GOLDEN / f'rtmdet_{side}' / 'run' for side in ('before', 'after'))
    if kind == 'drifting':
        before = write_run(tmp_path / 'before', make_timed_run(DRIFTING_BEFORE_S))
        after = write_run(tmp_path / 'after', make_timed_run(DRIFTING_AFTER_S))
    assert main(['compare', str(before), str(after)]) == 0
    compared = capsys.readouterr().out
    assert compared.startswith('The second run is faster: -')
    assert show_gain(before, after)
    shown = capsys.readouterr().out
    assert shown.startswith(compared)
    last_line = shown.splitlines()[-1]
    assert last_line.startswith('Whole training, with start-up, saves and validation: ')
    assert last_line.endswith(' times as fast.')
    assert not show_gain(after, before)


def test_the_demo_claims_no_speed_where_compare_says_none(tmp_path, capsys):
    before = write_run(tmp_path / 'before', make_timed_run(DRIFTING_BEFORE_S))
    mixed_s = DRIFTING_BEFORE_S[9:] + DRIFTING_BEFORE_S[:9]
    same = write_run(tmp_path / 'same', make_timed_run(mixed_s))
    assert not show_gain(before, same)
    shown = capsys.readouterr().out
    assert shown.startswith('No difference beyond noise: ')
    assert shown.endswith('Its iterations do not differ beyond noise.\n')
    unlike = make_timed_run(DRIFTING_AFTER_S, loader=make_loader(batch_size=8))
    assert not show_gain(before, write_run(tmp_path / 'unlike', unlike))
    shown = capsys.readouterr().out
    assert shown.startswith('The speeds cannot be compared.')
    assert shown.endswith('Its iterations cannot be compared.\n')
    assert 'times as fast' not in shown


@pytest.mark.parametrize(
    ('verdict', 'after', 'end'),
    [
        (FASTER, 15.0, '10.00 -> 15.00 images/s, 1.50 times as fast.'),
        (SLOWER, 5.0, '10.00 -> 5.00 images/s, 0.50 times as fast.'),
        (FASTER, 9.0, 'Its iterations are faster; the rest outweighs that.'),
        (SLOWER, 11.0, 'Its iterations are slower; the rest outweighs that.'),
        (NO_DIFFERENCE, 15.0, 'Its iterations do not differ beyond noise.'),
        (None, 15.0, 'Its iterations cannot be compared.'),
    ],
)
def test_the_whole_training_never_contradicts_its_iterations(verdict, after, end):
    comparison = RunComparison('a', 'b', verdict, (), {}, (), ())
    assert describe_whole_training(comparison, 10.0, after).endswith(end)


def test_a_config_of_ones_own_is_refused_before_anything_is_written(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    config = (GOLDEN.parents[1] / DEMO).read_text()
    Path('mine.py').write_text(config.replace('data/demo/', 'data/mine/'))
    assert main(['demo', 'mine.py']) == 2
    said = capsys.readouterr().err
    assert 'expected a config that trains on data/demo' in said
    assert [path.name for path in tmp_path.iterdir()] == ['mine.py']
