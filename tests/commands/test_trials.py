"""What ``sweep``, ``save-bench`` and ``verify`` refuse before they train."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.prepared import make_starved
from fakes.runs import make_evidence, write_run
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.experiment.store import STORE_NAME, open_store
from mmgpu_hooks.schema.tried import Trial
from training.trial_toys import write_config


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path, more="optim_wrapper['optimizer']['momentum'] = 0.9\n")


@pytest.fixture
def refusal(capsys):
    """Runs a command that must refuse; its one sentence."""

    def run(name: str, *words: object) -> str:
        assert main([name, *map(str, words)]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count('\n')) == ('', 1)
        assert err.startswith(f'mmgpu {name}: ')
        return err

    return run


BAD_CONFIGS = {
    None: 'expected a config file, found nothing there',
    '1 / 0\n': 'expected a config that MMEngine loads, found ZeroDivisionError',
    "model = dict(type='A')\n": 'found no train_dataloader and no train_cfg',
}


@pytest.mark.parametrize('name', ['sweep', 'save-bench', 'verify', 'profile'])
@pytest.mark.parametrize('text', BAD_CONFIGS)
def test_configs_that_cannot_be_trained(name, text, tmp_path, refusal):
    path = tmp_path / 'bad.py'
    if text is not None:
        path.write_text(text)
    words = [path] if name == 'profile' else [path, '--num-workers', 0]
    if name == 'verify':
        words = [write_run(tmp_path / 'run', make_starved()), '--config', path]
    line = refusal(name, *words)
    assert str(path) in line
    assert BAD_CONFIGS[text] in line


def test_a_sweep_that_is_refused_forgets_nothing(config, tmp_path, refusal):
    words = [config, '--fresh', '--work-dir', tmp_path / 'w']
    path = tmp_path / 'w' / 'sweep' / STORE_NAME
    with open_store(path.parent, {}) as store:
        store.append(Trial('2 workers', 'completed'))
        before = path.read_bytes()
        line = refusal('sweep', *words)
    assert 'found that another one is at work in it' in line
    assert path.read_bytes() == before
    with open_store(path.parent, {}, fresh=True):
        assert not path.exists()


def test_runs_that_cannot_be_verified(tmp_path, refusal):
    well = make_evidence(data_wait_s=0.0001, step_s=0.2)
    plain = tmp_path / 'plain'
    plain.mkdir()
    (plain / 'scalars.json').write_text('{"time": 0.2, "iter": 50, "step": 50}\n')
    for folder, reason in (
        (write_run(tmp_path / 'a', well), 'expected a recommendation to verify'),
        (write_run(tmp_path / 'b', make_starved(tmp_path / 'gone.py')), 'gone.py nor'),
        (plain, 'expected evidence of GPUEfficiencyHook'),
        (tmp_path / 'nothing', 'found nothing there'),
    ):
        assert reason in refusal('verify', folder)


def test_a_folder_is_no_config(tmp_path, refusal):
    assert 'config file, found a folder.' in refusal('profile', tmp_path)


@pytest.mark.parametrize('iterations', [0, 51, 'all'])
def test_so_many_iterations_cannot_be_profiled(iterations, config, refusal):
    assert '--iterations' in refusal('profile', config, '--iterations', iterations)


@pytest.mark.parametrize(
    ('status', 'error', 'words'),
    [
        ('failed', 'TypeError: no', 'expected a config that trains 10 iterations'),
        ('timed_out', None, 'timed out after 0: killed after 600 s'),
        ('completed', None, 'completed after 0: the training was over'),
    ],
)
def test_a_training_that_cannot_be_profiled(
    status, error, words, config, tmp_path, scripted, refusal
):
    scripted.ending = staticmethod(lambda spec: (status, error))
    more = ['--iterations', 1, '--work-dir', tmp_path]
    line = refusal('profile', config, *more)
    assert words in line
    assert (error or '') in line
