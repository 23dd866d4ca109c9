"""Polite workers, written where the config has the hook."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.replaced import replace
from fakes.runs import add_to_end, make_evidence, make_run, render_evidence
from fakes.saves import HOST, LOADER, make_aftermath, make_contended, walls_of
from mmgpu_hooks.commands.main import main

pytest.importorskip('mmengine.config', reason='the proof loads configs with MMEngine')

LOADING = "train_dataloader = dict(num_workers=8, dataset=dict(type='A'))\n"
OURS = "dict(type='mmgpu_hooks.GPUEfficiencyHook'"
PLACES = {
    'default_hooks.gpu_efficiency': (
        f'default_hooks = dict(\n    gpu_efficiency={OURS}),\n)\n',
        f'default_hooks = dict(\n    gpu_efficiency={OURS}, worker_nice=10),\n)\n',
    ),
    'custom_hooks.1': (
        f"custom_hooks = [\n    dict(type='EMAHook'),\n    {OURS}),\n]\n",
        "custom_hooks = [\n    dict(type='EMAHook'),\n"
        f'    {OURS}, worker_nice=10),\n]\n',
    ),
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / 'mine.py'


@pytest.fixture
def work_dir(tmp_path: Path, config: Path) -> Path:
    """A run that needs nothing of its loader, but whose saves workers hold up."""
    saves = tuple(make_contended(10 * index) for index in range(1, 5))
    run = make_run(config_path=str(config), host=HOST, loader=LOADER)
    evidence = make_evidence(run=run, data_wait_s=0.0)
    evidence = add_to_end(evidence, checkpoint_save=walls_of(saves))
    after = tuple(make_aftermath(save.iteration) for save in saves)
    evidence = replace(evidence, save_records=saves, save_aftermaths=after)
    path = tmp_path / 'run' / '20261120_101500' / 'vis_data' / 'gpu_efficiency.jsonl'
    path.parent.mkdir(parents=True)
    path.write_text(render_evidence(evidence))
    return tmp_path / 'run'


def recommend(work_dir: Path, capsys, *flags: str) -> dict:
    code = main(['recommend', str(work_dir), '--format', 'json', *flags])
    answer = json.loads(capsys.readouterr().out)
    return {**answer, 'code': code}


@pytest.mark.parametrize('place', PLACES)
def test_it_is_written_where_the_hook_is(work_dir, config, capsys, place):
    before, after = PLACES[place]
    config.write_text(LOADING + before)
    answer = recommend(work_dir, capsys)
    assert (answer['code'], answer['error']) == (0, None)
    changes = [(c['key'], c['old'], c['new']) for c in answer['changes']]
    assert changes == [(f'{place}.worker_nice', None, 10)]
    assert config.with_name('mine_recommended.py').read_text() == LOADING + after
    assert recommend(work_dir, capsys, '--check')['code'] == 1


def test_a_hook_of_the_base_is_set_in_the_leaf(work_dir, config, capsys):
    base = config.with_name('base.py')
    base.write_text(LOADING + PLACES['default_hooks.gpu_efficiency'][0])
    config.write_text("_base_ = 'base.py'\n")
    answer = recommend(work_dir, capsys)
    assert answer['error'] is None
    assert 'worker_nice=10' in config.with_name('mine_recommended.py').read_text()
    assert 'worker_nice' not in base.read_text()


def test_a_hook_that_was_switched_on_elsewhere_is_left_to_the_user(
    work_dir, config, capsys
):
    config.write_text(LOADING)
    answer = recommend(work_dir, capsys)
    assert (answer['code'], answer['error'], answer['changes']) == (0, None, [])
    assert answer['no_change_reason'] == f'Nothing of it can be set in {config}.'
    assert any('worker_nice was left out' in note for note in answer['notes'])
    assert not config.with_name('mine_recommended.py').exists()
    # what would help is said all the same
    assert answer['save_cures'][0]['name'] == 'polite_workers'


def test_a_config_with_polite_workers_needs_nothing(work_dir, config, capsys):
    config.write_text(LOADING + PLACES['default_hooks.gpu_efficiency'][1])
    answer = recommend(work_dir, capsys)
    assert answer['changes'] == []
    assert answer['no_change_reason'].endswith('has the recommended settings already.')
