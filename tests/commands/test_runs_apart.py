"""Several runs that do not go together, or whose configs nobody compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fakes.pooled import EACH, FIXED, make_pooled, write_pooled
from fakes.runs import render_evidence
from mmgpu_hooks.commands.main import main

CONFIG = """\
model = dict(type='A')
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.02))
train_dataloader = dict(batch_size=2, num_workers=4, persistent_workers=True)
auto_scale_lr = dict(base_batch_size=16, enable=False)
"""


def write_pair(
    tmp_path: Path, *, configs: tuple[str, str] = (CONFIG, CONFIG), **other: object
) -> list[str]:
    """Batch sizes 2, the newest, and 4."""
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / 'mine.py'
    path.write_text(CONFIG)
    run = {'config_path': str(path)}
    pair = make_pooled(2, day=28, run=run), make_pooled(4, day=26, run=run, **other)
    return [
        str(write_pooled(tmp_path / f'run{number}', evidence, config))
        for number, (evidence, config) in enumerate(zip(pair, configs))
    ]


def ask(capsys, *arguments: str, code: int = 0) -> dict:
    assert main([*arguments, '--format', 'json']) == code
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize('command', [['predict'], ['recommend', '--dry-run']])
def test_configs_that_were_not_compared_are_told(command, tmp_path, capsys):
    bare = write_pair(tmp_path / 'bare', configs=(CONFIG, ''))
    torn = write_pair(tmp_path / 'torn', configs=(CONFIG, 'model = dict('))
    whole = write_pair(tmp_path / 'whole')
    for arguments, why in (
        (bare, f"MMEngine's copy of the config is not beside {bare[1]}"),
        (torn, 'one of them does not load: '),
    ):
        notes = ask(capsys, *command, *arguments)['notes']
        told = [note for note in notes if 'were not compared' in note]
        assert len(told) == 1
        assert told[0].startswith(f'The configs of {arguments[0]}/')
        assert f' and {arguments[1]}/' in told[0]
        assert f'({why}' in told[0]
        assert told[0].endswith('; they are taken for the same training.')
    notes = ask(capsys, *command, *whole)['notes']
    assert not any('compared' in note for note in notes)


def test_without_mmengine_configs_are_not_compared(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, 'mmengine', None)
    monkeypatch.setitem(sys.modules, 'mmengine.config', None)
    notes = ask(capsys, 'predict', *write_pair(tmp_path))['notes']
    assert any('not compared (MMEngine cannot be imported' in note for note in notes)


def test_where_steps_make_no_line_the_newest_run_alone_is_predicted(tmp_path, capsys):
    # the step is shorter than with half the images
    runs = write_pair(tmp_path, step_s=0.02, process_cpu_s=0.1)
    answer = ask(capsys, 'predict', *runs, '--batch-size', '2', '4')
    assert {one['batch_size'] for one in answer['predictions']} == {2}
    assert [run['batch_size'] for run in answer['fitted_runs']] == [2]
    said = ' '.join(answer['notes'])
    assert 'The step does not grow with the batch size' in said
    assert 'What a step takes with a batch size of 4 is unknown' in said


def test_why_a_batch_size_is_unknown_names_the_run_that_was_left_out(tmp_path, capsys):
    other = CONFIG.replace("type='A'", "type='B'")
    runs = write_pair(tmp_path / 'other', configs=(CONFIG, other))
    assert main(['predict', *runs, '--batch-size', '4']) == 2
    said = capsys.readouterr().err
    assert 'What a step takes with a batch size of 4 is unknown' in said
    assert f'{runs[1]}/' in said
    assert "is left out: its config is another one (model.type 'A' -> 'B')." in said
    odd = write_pair(tmp_path / 'odd', step_s=0.02)
    assert main(['predict', *odd, '--batch-size', '8']) == 2
    assert 'The step does not grow with the batch size' in capsys.readouterr().err


def test_batch_sizes_that_were_asked_for_are_shown(tmp_path, capsys):
    runs = write_pair(tmp_path)
    asking = (['--batch-size', '2'], True), (['--batch-size', '8'], True), ([], False)
    for asked, has_column in asking:
        assert main(['predict', *runs, *asked]) == 0
        out = ' '.join(capsys.readouterr().out.split())
        assert ('batch workers iteration' in out) is has_column


def test_one_word_on_the_learning_rate(tmp_path, capsys):
    arguments = ['--allow-batch-size', '--dry-run']
    answer = ask(capsys, 'recommend', *write_pair(tmp_path), *arguments)
    assert 'the rate goes from 0.02 to 0.08' in answer['batch_size'][1]
    assert not any('auto_scale_lr' in note for note in answer['notes'])


def test_the_batch_size_is_no_part_of_what_no_setting_gives(tmp_path, capsys):
    runs = write_pair(tmp_path)
    for asked, but in ((['--allow-batch-size'], ' but the batch size'), ([], '')):
        assert main(['recommend', *runs, '--dry-run', '--details', *asked]) == 0
        out = ' '.join(capsys.readouterr().out.split())
        assert f'no setting of the loader{but} gives more.' in out


def test_any_rank_tells_of_memory(tmp_path, capsys):
    runs = write_pair(tmp_path)
    for folder, size, images in ((runs[0], 2, 2), (runs[1], 4, 5)):
        first = next(Path(folder).glob('*/vis_data/gpu_efficiency.jsonl'))
        day = 30 - size
        ranks = [
            make_pooled(size, day=day, run={'world_size': 2, 'rank': rank}, **peak)
            for rank, peak in (
                (0, {}),
                (1, {'gpu_mem_peak_bytes': FIXED + images * EACH}),
            )
        ]
        first.write_text(render_evidence(ranks[0]))
        second = first.with_name('gpu_efficiency_rank1.jsonl')
        second.write_text(render_evidence(ranks[1]))
    answer = ask(capsys, 'predict', *runs, '--batch-size', '8')
    assert answer['memory']['rules'][1]['peak_bytes'] == FIXED + 5 * EACH
    assert any('but for their peaks of memory' in note for note in answer['notes'])
