"""Tests ``mmgpu recommend``: verdicts, rewritten configs, advice and refusals."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence, make_run, render_evidence, write_run
from fakes.saves import HOST, LOADER, make_contended_ones, with_saves
from fakes.validations import make_validation
from mmgpu_hooks.adviser.child import advise_on_run
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.schema.recorded import LoaderSettings
from mmgpu_hooks.schema.run_folder import EVIDENCE_NAME, evidence_name

ROOT = Path(__file__).resolve().parents[2]

CONFIG = """\
# my experiment
train_dataloader = dict(
    batch_size=4,
    num_workers=0,  # debugging
    persistent_workers=False,
    dataset=dict(type='ToyDataset'),
)
"""
REWRITTEN = CONFIG.replace('num_workers=0', 'num_workers=2').replace('False', 'True')
VALIDATION = 'val_dataloader = dict(num_workers=1, persistent_workers=True)\n'
TRAIN_KEYS = ['train_dataloader.num_workers', 'train_dataloader.persistent_workers']
WAITS: dict[str, Any] = {
    'data_wait_s': 0.3,
    'data_wait_cpu_s': 6.0,
    'process_cpu_s': 10.0,
}
KEEPS_UP: dict[str, Any] = {'data_wait_s': 0.001, 'step_s': 0.299}


NO_WORKERS = LoaderSettings(
    num_workers=0,
    persistent_workers=False,
    pin_memory=False,
    batch_size=4,
    batches_per_epoch=100,
    dataset_length=400,
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / 'configs' / 'mine.py'
    path.parent.mkdir()
    path.write_text(CONFIG)
    return path


@pytest.fixture
def work_dir(tmp_path: Path, config: Path) -> Path:
    """Folder of a run without workers whose data wait equals its computing time."""
    run = make_run(config_path=str(config), loader=NO_WORKERS)
    return write_run(tmp_path / 'work_dirs', make_evidence(run=run, **WAITS))


@pytest.fixture
def recommend(ask):
    """Function that runs ``mmgpu recommend`` and returns its JSON answer."""
    return lambda *words, **more: ask('recommend', *words, **more)


def keys_of(answer: dict[str, Any]) -> list[str]:
    return [change['key'] for change in answer['changes']]


def files_of(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob('*') if p.is_file()}


def test_the_config_is_rewritten_beside_the_original(work_dir, config, capsys):
    assert main(['recommend', str(work_dir)]) == 0
    out = capsys.readouterr().out
    assert config.read_text() == CONFIG
    assert (config.parent / 'mine_recommended.py').read_text() == REWRITTEN
    assert out.startswith('Data-bound, too few workers (high confidence)\n')
    assert len(out.splitlines()) <= 26
    assert max(map(len, out.split('\n\n---')[0].splitlines())) <= 80
    assert '+    num_workers=2,  # debugging' in out
    assert 'mmgpu verify ' in out
    assert main(['recommend', str(work_dir), '--details']) == 0
    assert 'tools/train.py' in capsys.readouterr().out


def test_the_json_answer_has_changes_with_reasons(work_dir, config, recommend):
    answer = recommend(work_dir)
    assert answer['version'] == 1
    assert [(c['old'], c['new']) for c in answer['changes']] == [(0, 2), (False, True)]
    assert all(change['reason'] for change in answer['changes'])
    assert answer['evidence']['steady_iterations'] == 140
    assert answer['output'].endswith('mine_recommended.py')


@pytest.mark.parametrize(('flag', 'code'), [('--dry-run', 0), ('--check', 1)])
def test_nothing_is_written_when_not_asked_for(work_dir, config, recommend, flag, code):
    before = files_of(config.parents[1])
    assert '+    num_workers=2,' in recommend(work_dir, flag, code=code)['diff']
    assert files_of(config.parents[1]) == before


def test_output_and_config_can_be_named(work_dir, config, tmp_path, recommend):
    other, target = tmp_path / 'other.py', tmp_path / 'new.py'
    other.write_text(CONFIG)
    recommend(work_dir, '--config', str(other), '--output', str(target))
    assert target.read_text() == REWRITTEN
    assert not (config.parent / 'mine_recommended.py').exists()
    # a second pass changes nothing
    answer = recommend(work_dir, '--config', str(target), '--check')
    assert 'has the recommended settings already' in answer['no_change_reason']


def test_a_config_that_is_gone_or_changed_is_said(work_dir, config, recommend, capsys):
    copy = work_dir / 'config.py'
    copy.write_text(CONFIG.replace('batch_size=4', 'batch_size=8'))
    notes = ' '.join(recommend(work_dir, '--dry-run')['notes'])
    assert 'train_dataloader.batch_size 8 -> 4' in notes
    config.unlink()
    assert 'own copy was rewritten' in ' '.join(recommend(work_dir)['notes'])
    assert copy.with_name('config_recommended.py').exists()
    copy.unlink()
    assert 'name it with --config' in recommend(work_dir, code=2)['error']


BAD_CONFIGS = {
    'syntax error': 'train_dataloader = dict(\n',
    'no loader': 'model = dict(type="A")\n',
    'function': 'train_dataloader = make()\n',
}


@pytest.mark.parametrize('case', BAD_CONFIGS)
def test_a_config_that_cannot_be_edited_is_refused_whole(
    work_dir, config, capsys, case
):
    config.write_text(BAD_CONFIGS[case])
    before = files_of(config.parents[1])
    assert main(['recommend', str(work_dir)]) == 2
    out, err = capsys.readouterr()
    assert 'mine.py' in err and err.count('\n') == 1
    assert files_of(config.parents[1]) == before
    # the judgement is not lost for it
    assert 'Data-bound, too few workers' in out


def test_where_mmengine_is_not_the_settings_are_said_and_nothing_is_edited(
    work_dir, config, recommend, monkeypatch
):
    monkeypatch.setitem(sys.modules, 'mmengine', None)
    monkeypatch.setitem(sys.modules, 'mmengine.config', None)
    answer = recommend(work_dir, code=2)
    assert keys_of(answer) == TRAIN_KEYS
    assert 'expected MMEngine' in answer['error']
    assert 'or run where the training runs' in answer['error']
    assert files_of(config.parent) == {'mine.py'}


def test_a_run_without_evidence_is_refused_and_the_older_one_named(tmp_path, capsys):
    older = tmp_path / '20261120_101500' / 'gpu_efficiency.jsonl'
    plain = tmp_path / '20261121_101500' / 'scalars.json'
    for path in (older, plain):
        path.parent.mkdir()
        path.write_text('{"lr": 0.1, "time": 0.5, "data_time": 0.3}\n')
    assert main(['recommend', str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert 'expected evidence of GPUEfficiencyHook' in said
    assert 'mmgpu run tools/train.py CONFIG (or mmgpu enable CONFIG)' in said
    assert f'an older run has it: {older}' in said


@pytest.mark.parametrize(
    'command', [['tools/recommend.py'], ['-m', 'mmgpu_hooks', 'recommend']]
)
def test_the_tool_and_the_module_are_the_same_command(work_dir, command):
    done = subprocess.run(
        [sys.executable, *command, str(work_dir), '--dry-run'],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, '')
    assert done.stdout.startswith('Data-bound, too few workers')


# Niced workers, written where the config has the hook.

LOADING = "train_dataloader = dict(num_workers=8, dataset=dict(type='A'))\n"
OURS = "dict(type='mmgpu_hooks.GPUEfficiencyHook'"
HOOKS = f'default_hooks = dict(gpu_efficiency={OURS}))\n'


@pytest.fixture
def contended(tmp_path: Path, config: Path) -> Path:
    """Folder of a run that loads fast, but whose workers slow its checkpoint saves."""
    run = make_run(config_path=str(config), host=HOST, loader=LOADER)
    evidence = make_evidence(run=run, data_wait_s=0.0)
    evidence = with_saves(evidence, make_contended_ones(4))
    return write_run(tmp_path / 'run', evidence)


def test_niced_workers_are_written_where_the_hook_is(contended, config, recommend):
    config.write_text(LOADING + HOOKS)
    (change,) = recommend(contended)['changes']
    key = 'default_hooks.gpu_efficiency.worker_nice'
    assert (change['key'], change['new']) == (key, 10)
    written = config.with_name('mine_recommended.py').read_text()
    wanted = LOADING + HOOKS.replace(OURS, f'{OURS}, worker_nice=10')
    assert ''.join(written.split()) == ''.join(wanted.split())
    config.write_text(written)
    assert keys_of(recommend(contended)) == []


@pytest.mark.parametrize('elsewhere', ['', f'custom_hooks = [{OURS})]\n'])
def test_a_hook_that_was_switched_on_elsewhere_is_left_to_the_user(
    contended, config, recommend, elsewhere
):
    config.write_text(LOADING + elsewhere)
    answer = recommend(contended)
    assert answer['changes'] == []
    assert any('worker_nice was left out' in note for note in answer['notes'])
    assert files_of(config.parent) == {'mine.py'}
    # what would help is said all the same
    assert answer['save_cures'][0]['name'] == 'worker_nice'


@pytest.mark.parametrize(
    ('added_by', 'elsewhere', 'nice', 'reason'),
    [
        ('mmgpu run', '', 10, None),
        (
            None,
            f'custom_hooks = [{OURS})]\n',
            None,
            'worker_nice cannot be set in this config',
        ),
    ],
)
def test_when_training_ends_niced_workers_are_an_option_of_the_command(
    tmp_path, config, added_by, elsewhere, nice, reason
):
    config.write_text(LOADING + elsewhere)
    run = make_run(config_path=str(config), host=HOST, loader=LOADER)
    run = replace(run, hook_added_by=added_by)
    evidence = make_evidence(run=run, data_wait_s=0.0)
    evidence = with_saves(evidence, make_contended_ones(4))
    folder = write_run(tmp_path / 'run', evidence, config.read_text())
    advice = advise_on_run(folder / EVIDENCE_NAME)
    assert (advice.config, advice.worker_nice, advice.reason) == (None, nice, reason)


# The loader of validation.


@pytest.fixture
def validated(tmp_path, config):
    """Function that writes a run whose validation has too few workers."""

    def write(*, waits: bool = False) -> Path:
        run = make_run(config_path=str(config))
        if waits:
            run = replace(run, loader=NO_WORKERS)
        evidence = make_evidence(run=run, **(WAITS if waits else KEEPS_UP))
        both = (make_validation(0), make_validation(1))
        return write_run(tmp_path / 'run', replace(evidence, validations=both))

    return write


def test_the_loader_of_validation_is_rewritten_by_its_own_evidence(
    validated, config, recommend, capsys
):
    config.write_text(CONFIG + VALIDATION + 'test_dataloader = val_dataloader\n')
    folder = validated()
    answer = recommend(folder)
    (change,) = answer['changes']
    assert (change['key'], change['new']) == ('val_dataloader.num_workers', 4)
    assert 'iteration of validation' in change['reason']
    assert answer['validation']['validations'] == 2
    assert answer['validation']['gain_s'] > 0.0
    written = (config.parent / 'mine_recommended.py').read_text()
    # training and testing keep theirs
    assert 'num_workers=0,  # debugging' in written
    assert written.endswith('val_dataloader = dict(val_dataloader, num_workers=4)\n')
    # verify would not validate, and a part without figures has no title
    assert main(['recommend', str(folder), '--in-place', '--details']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not any('mmgpu verify' in line for line in lines)
    assert not any(
        lines[n - 1][:1].isupper() for n in range(len(lines)) if not lines[n]
    )
    # what is set already is not promised again
    again = recommend(folder)
    assert (again['changes'], again['validation']['gain_s']) == ([], None)


@pytest.mark.parametrize('without', ['', 'val_dataloader = None\n'])
def test_training_is_rewritten_where_validation_cannot_be(
    validated, config, recommend, without
):
    config.write_text(CONFIG + without)
    answer = recommend(validated(waits=True))
    assert keys_of(answer) == TRAIN_KEYS
    written = (config.parent / 'mine_recommended.py').read_text()
    assert written == REWRITTEN + without
    assert sum('val_dataloader was left' in note for note in answer['notes']) == 1
    assert answer['validation']['gain_s'] is None


@pytest.mark.parametrize('command', ['recommend', 'report', 'predict'])
def test_ranks_that_recorded_no_interval_are_told_in_a_sentence(
    command, tmp_path, capsys
):
    recorded = ROOT / 'tests' / 'golden' / 'toy_two_ranks' / 'run'
    for path in recorded.glob('*.jsonl'):
        first, *_ = path.read_text().splitlines(keepends=True)
        (tmp_path / path.name).write_text(first)
    page = str(tmp_path / 'page.html')
    options = {'report': ['-o', page], 'recommend': ['--details'], 'predict': []}
    code = 2 * (command == 'predict')
    assert main([command, str(tmp_path), *options[command]]) == code
    said = ''.join(capsys.readouterr())
    said += ''.join(path.read_text() for path in tmp_path.glob('page.html'))
    assert 'Rank 1 recorded no interval' in said or '0 steady iterations' in said
    assert not re.search(r'\bnan\b', said)


def test_ranks_that_train_other_numbers_of_batches_are_a_finding(
    tmp_path, config, recommend
):
    counts = {0: 100, 1: 99}
    for rank, batches in counts.items():
        loader = replace(NO_WORKERS, batches_per_epoch=batches)
        run = make_run(
            rank=rank,
            world_size=2,
            config_path=str(config),
            loader=loader,
            max_iters=12 * batches,
        )
        evidence = render_evidence(make_evidence(run=run, **WAITS))
        (tmp_path / evidence_name(rank)).write_text(evidence)
    answer = recommend(tmp_path, '--dry-run')
    details = {found['code']: found['detail'] for found in answer['findings']}
    expected = 'rank 0: 100 batches an epoch; rank 1: 99 batches an epoch.'
    assert details.get('MG204') == expected
    assert not any('another run' in note for note in answer['notes'])


# A start that srun narrowed.


@pytest.fixture
def narrow(tmp_path: Path, config: Path) -> Path:
    """Folder of a run bound by srun to one of the eight CPUs given by SLURM."""
    run = make_run(config_path=str(config), loader=NO_WORKERS)
    host = replace(
        run.host,
        **{'affinity_cpus': 1, 'usable_cores': 1.0, 'slurm_cpus': 8},
        **{'slurm_bound_cpus': 1, 'slurm_given_cpus': 8, 'slurm_tasks': 1},
        mended_cores=8.0,
    )
    run = replace(run, host=host, work_dir=str(tmp_path / 'narrow'))
    return write_run(tmp_path / 'narrow', make_evidence(run=run, **WAITS))


MENDED = 'srun --ntasks=1 --cpus-per-task=8 --cpu-bind=cores'


def test_settings_for_a_mended_start_are_shown_and_written_where_it_is_mended(
    narrow, config, recommend, capsys
):
    before = files_of(config.parents[1])
    answer = recommend(narrow)
    assert (answer['changes'], answer['output']) == ([], None)
    assert files_of(config.parents[1]) == before
    assert answer['verdict']['name'] == 'affinity_collapsed'
    mended = answer['mended_start']
    assert (mended['command'], mended['cores']) == (MENDED, 8.0)
    assert keys_of(mended) == TRAIN_KEYS
    assert 0 < mended['predicted_iter_s'] < 0.4

    for more in ([], ['--details']):
        assert main(['recommend', str(narrow), *more]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert f'Start     {MENDED} ...' in lines
        assert f'Write     mmgpu recommend {narrow} --cores 8' in lines
        changed = 'num_workers 0 -> 2, persistent_workers False -> True'
        assert f'Settings  {changed}' in lines

    answer = recommend(narrow, '--cores', 8)
    assert 'mended_start' not in answer
    assert answer['changes'] == mended['changes']
    assert Path(answer['output']).read_text() == REWRITTEN
    # the verdict stays that of the run
    assert answer['verdict']['name'] == 'affinity_collapsed'
    said = '8 usable cores for each rank (--cores); the run had 1.'
    assert said in answer['notes'][0]


def test_when_training_ends_the_config_is_for_the_start_as_it_was(narrow):
    advice = advise_on_run(narrow / EVIDENCE_NAME)
    assert (advice.config, advice.recommendation.changes) == (None, ())


@pytest.mark.parametrize(
    ('cores', 'said'),
    [
        ('9', 'expected at most the 8 CPUs of the host, found 9 for each rank'),
        ('0.5', 'expected at least the 1 usable cores that the run had, found 0.5'),
        ('0', 'expected a number of cores above 0'),
    ],
)
def test_cores_that_the_host_cannot_give_are_refused(
    narrow, config, cores, said, capsys
):
    before = files_of(config.parents[1])
    assert main(['recommend', str(narrow), '--cores', cores]) == 2
    assert said in capsys.readouterr().err
    assert files_of(config.parents[1]) == before


# A run that was a SLURM job.


@pytest.mark.parametrize(
    ('asked', 'logical'),
    [pytest.param(8, 8, id='too many'), pytest.param(2, 16, id='too few')],
)
def test_a_job_ends_with_what_the_next_one_should_ask_for(
    tmp_path, config, recommend, capsys, asked, logical
):
    run = make_run(config_path=str(config), loader=NO_WORKERS, slurm_job_id=4711)
    limits = {'usable_cores': float(asked), 'slurm_cpus': asked}
    host = replace(run.host, logical_cpus=logical, affinity_cpus=asked, **limits)
    evidence = make_evidence(run=replace(run, host=host), **WAITS)
    folder = write_run(tmp_path / 'job', evidence)
    found = recommend(folder, '--dry-run')['next_job']
    # two workers and the training process
    assert (found['cpus_per_task'], found['num_workers']) == (3, 2)
    assert (found['asked_cpus'], found['used_cores']) == (asked, 1.0)
    assert 0.2 < found['predicted_iter_s'] < 0.25
    for more in ([], ['--details']):
        assert main(['recommend', str(folder), '--dry-run', *more]) == 0
        lines = capsys.readouterr().out.splitlines()
        title, ask_for, other, iteration, this = lines[-5:]
        assert title == 'The next job: 3 CPUs for each task'
        assert ask_for == 'Ask for   #SBATCH --cpus-per-task=3'
        assert 'CPUS_PER_TASK=3 tools/slurm_train.sh' in other
        assert 'mim train ... -c 3' in other
        assert iteration.endswith('with num_workers=2 (predicted), now 0.500 s')
        assert this == f'This job  asked for {asked}, used 1.0 on average'


def test_ranks_of_one_task_ask_for_their_cpus_together(tmp_path, config, recommend):
    job = {'config_path': str(config), 'slurm_job_id': 4711, 'world_size': 2}
    run = make_run(loader=NO_WORKERS, **job)
    shared = {'ranks_on_host': 2, 'slurm_task_ranks': 2, 'usable_cores': 4.0}
    host = replace(run.host, slurm_cpus=8, **shared)
    evidence = make_evidence(run=replace(run, host=host), **WAITS)
    folder = write_run(tmp_path / 'job', evidence)
    found = recommend(folder, '--dry-run')['next_job']
    assert (found['cpus_per_task'], found['used_cores']) == (6, 2.0)


def test_only_a_slurm_job_has_a_next_one(work_dir, narrow, recommend):
    assert 'next_job' not in recommend(work_dir, '--dry-run')
    # of a start that srun narrowed, the mended one is meant
    assert recommend(narrow, '--dry-run')['next_job']['cpus_per_task'] == 3
    assert 'next_job' not in recommend(narrow, '--dry-run', '--cores', 8)
