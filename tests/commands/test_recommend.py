from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.runs import (
    make_evidence,
    make_ranks,
    make_run,
    make_workers,
    render_evidence,
)
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.schema import LoaderSettings, RunEvidence

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

REWRITTEN = """\
# my experiment
train_dataloader = dict(
    batch_size=4,
    num_workers=2,  # debugging
    persistent_workers=True,
    dataset=dict(type='ToyDataset'),
)
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / 'configs' / 'mine.py'
    path.parent.mkdir()
    path.write_text(CONFIG)
    return path


@pytest.fixture
def work_dir(tmp_path: Path, config: Path) -> Path:
    """A run without workers that waits as long as it computes."""
    run = make_run(
        config_path=str(config),
        loader=LoaderSettings(
            num_workers=0,
            persistent_workers=False,
            prefetch_factor=None,
            pin_memory=False,
            batch_size=4,
            batches_per_epoch=100,
            dataset_length=400,
            start_method='fork',
        ),
    )
    fields = {'data_wait_s': 0.3, 'data_wait_cpu_s': 6.0, 'process_cpu_s': 10.0}
    folder = tmp_path / 'work_dirs' / 'mine'
    write_run(folder, render_evidence(make_evidence(run=run, **fields)))
    return folder


def write_run(work_dir: Path, text: str, stamp: str = '20261120_101500') -> Path:
    path = work_dir / stamp / 'vis_data' / 'gpu_efficiency.jsonl'
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def unwrapped(capsys: pytest.CaptureFixture[str]) -> str:
    return ' '.join(capsys.readouterr().out.split())


def files_of(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob('*') if p.is_file()}


def test_the_config_is_rewritten_beside_the_original(work_dir, config, capsys):
    assert main(['recommend', str(work_dir)]) == 0
    out = capsys.readouterr().out
    assert config.read_text() == CONFIG
    assert (config.parent / 'mine_recommended.py').read_text() == REWRITTEN
    assert out.startswith('Data-bound, too few workers (high confidence)\n')
    assert len(out.splitlines()) <= 27
    assert max(map(len, out.split('\n\n---')[0].splitlines())) <= 80
    assert '-    num_workers=0,  # debugging' in out
    assert '+    num_workers=2,  # debugging' in out
    assert 'mmgpu verify ' in out
    assert main(['recommend', str(work_dir), '--details']) == 0
    assert 'tools/train.py' in capsys.readouterr().out


def test_the_json_answer_has_the_documented_keys(work_dir, config, capsys):
    assert main(['recommend', str(work_dir), '--format', 'json']) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer['verdict']['name'] == 'data_bound_workers'
    assert answer['verdict']['confidence'] == 'high'
    assert {(c['key'], c['old'], c['new']) for c in answer['changes']} == {
        ('train_dataloader.num_workers', 0, 2),
        ('train_dataloader.persistent_workers', False, True),
    }
    assert all(change['reason'] for change in answer['changes'])
    assert answer['evidence']['steady_iterations'] == 140
    assert answer['output'].endswith('mine_recommended.py')
    assert answer['findings'][0]['code'] == 'MG101'
    assert answer['version'] == 1


@pytest.mark.parametrize('flag', ['--dry-run', '--check'])
def test_nothing_is_written_when_not_asked_for(work_dir, config, capsys, flag):
    before = files_of(config.parents[1])
    code = main(['recommend', str(work_dir), flag])
    assert code == (1 if flag == '--check' else 0)
    assert files_of(config.parents[1]) == before
    assert '+    num_workers=2,' in capsys.readouterr().out


def test_in_place_keeps_the_original_as_bak(work_dir, config, capsys):
    assert main(['recommend', str(work_dir), '--in-place']) == 0
    assert config.read_text() == REWRITTEN
    assert (config.parent / 'mine.py.bak').read_text() == CONFIG
    assert 'mine.py.bak' in capsys.readouterr().out


def write_ranks(work_dir: Path, ranks: list[RunEvidence]) -> None:
    """Evidence of ranks instead of what is there."""
    first = next(work_dir.glob('*/vis_data/gpu_efficiency.jsonl'))
    for number, rank in enumerate(ranks):
        name = f'gpu_efficiency_rank{number}.jsonl' if number else first.name
        first.with_name(name).write_text(render_evidence(rank))


def test_the_rank_that_the_others_wait_for_is_judged(work_dir, capsys):
    write_ranks(work_dir, make_ranks([0.01, 0.01, 0.2, 0.01]))
    main(['recommend', str(work_dir), '--dry-run'])
    out = unwrapped(capsys)
    assert out.startswith('Data-bound')
    assert '67 % of an iteration' in out
    assert 'Rank 2 is the slowest and costs every rank 0.190 s per iteration' in out
    assert 'Rank 2 of 4 holds the others up and is judged.' in out


def test_of_ranks_alike_the_one_that_waits_most_is_judged(work_dir, capsys):
    write_ranks(work_dir, make_ranks([0.1, 0.1005, 0.1]))
    main(['recommend', str(work_dir), '--dry-run', '--format', 'json'])
    answer = json.loads(capsys.readouterr().out)
    assert answer['ranks']['slowest'] is None
    assert [row['rank'] for row in answer['ranks']['rows']] == [0, 1, 2]
    assert 'Rank 1 of 3 waits most for data and is judged.' in answer['notes']
    assert answer['run'].endswith('gpu_efficiency_rank1.jsonl')


def test_a_broken_file_of_another_rank_is_said_and_passed_over(work_dir, capsys):
    ranks = make_ranks([0.2, 0.01, 0.01])
    write_ranks(work_dir, ranks)
    path = next(work_dir.glob('*/vis_data/gpu_efficiency_rank2.jsonl'))
    path.write_text('garbage\n')
    assert main(['recommend', str(work_dir), '--dry-run', '--format', 'json']) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer['ranks']['slowest'] == 0
    assert any(note.startswith('Left out: ') for note in answer['notes'])
    assert any('missing: 2.' in note for note in answer['notes'])


def test_a_refusal_is_in_the_json_too(work_dir, config, capsys):
    config.write_text('train_dataloader = dict(\n')
    assert main(['recommend', str(work_dir), '--format', 'json']) == 2
    answer = json.loads(capsys.readouterr().out)
    assert 'mine.py' in answer['error']
    assert answer['output'] is None


def test_output_and_config_can_be_named(work_dir, config, tmp_path):
    other = tmp_path / 'other.py'
    other.write_text(CONFIG)
    target = tmp_path / 'new.py'
    arguments = ['--config', str(other), '--output', str(target)]
    assert main(['recommend', str(work_dir), *arguments]) == 0
    assert target.read_text() == REWRITTEN
    assert not (config.parent / 'mine_recommended.py').exists()


def test_a_second_pass_over_the_rewritten_config_changes_nothing(
    work_dir, config, capsys
):
    main(['recommend', str(work_dir)])
    capsys.readouterr()
    done = str(config.parent / 'mine_recommended.py')
    assert main(['recommend', str(work_dir), '--config', done, '--check']) == 0
    assert 'has the recommended settings already' in unwrapped(capsys)


def test_when_the_config_is_gone_the_copy_of_the_run_is_rewritten(
    work_dir, config, capsys
):
    config.unlink()
    copy = next(work_dir.glob('*/vis_data')) / 'config.py'
    copy.write_text(CONFIG)
    assert main(['recommend', str(work_dir)]) == 0
    assert copy.with_name('config_recommended.py').read_text() == REWRITTEN
    assert "so the run's own copy was rewritten" in unwrapped(capsys)


def test_a_config_that_changed_since_the_run_is_said(work_dir, config, capsys):
    copy = next(work_dir.glob('*/vis_data')) / 'config.py'
    copy.write_text(CONFIG.replace('batch_size=4', 'batch_size=8'))
    assert main(['recommend', str(work_dir), '--dry-run']) == 0
    out = unwrapped(capsys)
    assert 'is not what the run was started with' in out
    assert 'train_dataloader.batch_size 8 -> 4' in out


def test_its_own_edit_is_no_change_since_the_run(work_dir, config, capsys):
    copy = next(work_dir.glob('*/vis_data')) / 'config.py'
    copy.write_text(CONFIG)
    assert main(['recommend', str(work_dir), '--in-place']) == 0
    assert config.read_text() == REWRITTEN
    assert 'is not what the run was started with' not in unwrapped(capsys)


def test_where_mmengine_is_not_a_dry_run_answers_and_says_it_is_not_proven(
    work_dir, config, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, 'mmengine', None)
    monkeypatch.setitem(sys.modules, 'mmengine.config', None)
    words = ['recommend', str(work_dir), '--format', 'json']
    assert main([*words, '--dry-run']) == 0
    answer = json.loads(capsys.readouterr().out)
    assert '+' in answer['diff'] and answer['error'] is None
    assert any('Not proven' in note for note in answer['notes'])
    assert main(words) == 2
    assert config.read_text() == CONFIG
    assert not config.with_name('mine_recommended.py').exists()


def test_when_no_config_is_left_it_is_asked_for(work_dir, config, capsys):
    config.unlink()
    assert main(['recommend', str(work_dir)]) == 2
    assert 'name it with --config' in capsys.readouterr().err


def test_a_run_with_nothing_to_change_says_so(tmp_path, capsys):
    evidence = make_evidence(data_wait_s=0.001, workers=make_workers(0.1))
    write_run(tmp_path / 'run', render_evidence(evidence))
    for flags in ([], ['--check']):
        assert main(['recommend', str(tmp_path / 'run'), *flags]) == 0
        assert (
            'Nothing to change. In steady iterations data is at hand'
            in capsys.readouterr().out
        )


def test_a_plain_run_gets_a_verdict_of_low_confidence(tmp_path, capsys):
    folder = tmp_path / 'run' / '20261120_101500' / 'vis_data'
    folder.mkdir(parents=True)
    line = {'lr': 0.1, 'time': 0.5, 'data_time': 0.3, 'iter': 50, 'step': 50}
    (folder / 'scalars.json').write_text(json.dumps(line) + '\n')
    assert main(['recommend', str(tmp_path / 'run')]) == 0
    out = capsys.readouterr().out
    assert out.startswith('Perhaps data-bound (low confidence)')
    assert 'no evidence of GPUEfficiencyHook' in ' '.join(out.split())


def test_a_torn_file_is_used_and_said(tmp_path, config, capsys):
    text = render_evidence(make_evidence(data_wait_s=0.001))
    write_run(tmp_path / 'run', text[:-40])
    assert main(['recommend', str(tmp_path / 'run')]) == 0
    assert '1 torn last line skipped' in capsys.readouterr().out


BAD_EVIDENCE = {
    'empty': ('', 'expected a run record'),
    'garbage': ('garbage\n', 'found 1 unreadable lines'),
    'schema': ('{"kind":"run","schema":99}\n', 'install a newer mmgpu_hooks'),
    'two runs': (
        render_evidence(make_evidence(1))
        + render_evidence(make_evidence(1, run=make_run(run_id='two'))),
        'found 2 runs',
    ),
}


@pytest.mark.parametrize('case', BAD_EVIDENCE)
@pytest.mark.parametrize('form', ['text', 'json'])
def test_bad_evidence_is_one_sentence_and_exit_code_2(tmp_path, capsys, case, form):
    text, sentence = BAD_EVIDENCE[case]
    write_run(tmp_path / 'run', text)
    assert main(['recommend', str(tmp_path / 'run'), '--format', form]) == 2
    captured = capsys.readouterr()
    assert captured.out == ''
    assert captured.err.count('\n') == 1
    assert sentence in captured.err


@pytest.mark.parametrize('folder', ['missing', 'empty', 'unrelated'])
def test_a_folder_without_a_run_is_exit_code_2(tmp_path, capsys, folder):
    path = tmp_path / folder
    if folder != 'missing':
        path.mkdir()
    if folder == 'unrelated':
        (path / 'notes.txt').write_text('hello')
    assert main(['recommend', str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ''
    assert captured.err.startswith(f'mmgpu recommend: {path}: expected')
    assert captured.err.count('\n') == 1


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
    captured = capsys.readouterr()
    assert captured.err.count('\n') == 1
    assert 'mine.py' in captured.err
    assert files_of(config.parents[1]) == before
    # the judgement is not lost for it
    assert 'Data-bound, too few workers' in captured.out


def run_tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize(
    'command', [['tools/recommend.py'], ['-m', 'mmgpu_hooks', 'recommend']]
)
def test_the_tool_and_the_module_are_the_same_command(work_dir, command):
    done = run_tool(*command, str(work_dir), '--dry-run')
    assert (done.returncode, done.stderr) == (0, '')
    assert done.stdout.startswith('Data-bound, too few workers')


def test_a_reader_that_stops_early_is_no_error(work_dir):
    command = f'{sys.executable} tools/recommend.py {work_dir} --dry-run | head -1'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == ''
