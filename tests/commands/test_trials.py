"""What ``sweep``, ``save-bench`` and ``verify`` refuse before they train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.prepared import make_starved
from fakes.runs import make_evidence, write_run
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.experiment import cards
from mmgpu_hooks.experiment.store import STORE_NAME, open_store
from mmgpu_hooks.experiment.trial import build_command
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.tried import Trial, TrialSpec
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


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['--gpus', '1', '2'], '2 GPUs asked, 0 here'),
        (['--amp', 'off', 'on'], 'AmpOptimWrapper refuses to train on the CPU'),
        (['--gpus', '1', '--amp', 'on'], '1 GPU asked, 0 here'),
    ],
)
def test_what_only_cards_train_is_refused_without_them(
    words, said, config, refusal, monkeypatch
):
    monkeypatch.setattr(cards, 'read_cards', refuse_cards)
    assert said in refusal('sweep', config, *words)


def refuse_cards():
    raise UserError('expected an NVIDIA GPU, found none.')


def test_more_cards_than_are_visible_cannot_be_swept(
    config, refusal, monkeypatch, fake_nvml
):
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    assert '--gpus: 3 GPUs asked, 1 here' in refusal('sweep', config, '--gpus', 1, 3)
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
    assert '--gpus: 1 GPU asked, 0 here' in refusal('sweep', config, '--gpus', 1)


def test_another_optimizer_wrapper_is_not_exchanged(tmp_path, refusal, fake_nvml):
    more = "optim_wrapper['type'] = 'ApexOptimWrapper'\n"
    path = write_config(tmp_path, more=more)
    line = refusal('sweep', path, '--amp', 'off')
    assert 'found ApexOptimWrapper; sweep without --amp' in line


def test_every_setting_is_asked_for_and_the_page_is_written(
    config, ask, tmp_path, scripted
):
    words = ['--num-workers', '0', '2', '--prefetch-factor', '2', '4']
    words += ['--pin-memory', 'off', 'on', '--batch-size', '1', '3', '--saves', '1']
    body = ask('sweep', config, *words, '--work-dir', tmp_path / 'w')
    # no workers load nothing ahead
    assert body['asked'] == 2 * 2 * (1 + 2)
    found = [row['setting'] for row in body['rows']]
    assert {one['prefetch_factor'] for one in found if not one['num_workers']} == {None}
    assert {one['pin_memory'] for one in found} == {True, False}
    assert '0 workers with prefetch_factor 2, 4 is not a trial' in body['notes'][0]
    specs = {Path(one.spec.folder).name: one.spec for one in scripted.started}
    spec = specs['2-workers-batch-3-prefetch-4-pin_memory-on']
    loader = {k.rpartition('.')[2]: v for k, v in spec.settings.items()}
    assert loader == {
        'max_epochs': 10**6,
        'num_workers': 2,
        'persistent_workers': True,
        'batch_size': 3,
        'prefetch_factor': 4,
        'pin_memory': True,
    }
    # one that warms up, and one that is measured after all that was loaded ahead
    assert (spec.last_saves, spec.save_gap) == (2, 2 * 4 + 8)
    page = Path(body['page'])
    assert page == tmp_path / 'w' / 'sweep' / 'sweep.html'
    assert 'Memory against batch size' in page.read_text()


@pytest.mark.parametrize(('amp', 'kind'), [('on', 'Amp'), ('off', '')])
def test_amp_is_an_optimizer_wrapper(amp, kind, config, tmp_path, scripted, fake_nvml):
    words = ['sweep', config, '--amp', amp, '--num-workers', 0]
    assert main([*map(str, words), '--work-dir', str(tmp_path)]) == 0
    (trial,) = scripted.started
    assert trial.spec.settings['optim_wrapper.type'] == f'{kind}OptimWrapper'
    assert trial.spec.folder.endswith(f'0-workers-batch-2-AMP-{amp}')


def test_several_gpus_are_started_by_torchrun():
    alone, both = (
        build_command(TrialSpec('/a.py', '/f', ranks=ranks), 7) for ranks in (1, 2)
    )
    assert alone[1:3] == ['-m', 'mmgpu_hooks.experiment.trial_child']
    assert both[1:-1] == [
        *('-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2'),
        *('-m', 'mmgpu_hooks.experiment.trial_child'),
    ]
    body = json.loads(both[-1])
    assert (body['spec']['ranks'], body['parent']) == (2, 7)


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
        (write_run(tmp_path / 'b', make_starved(tmp_path / 'gone.py')), 'gone.py (No'),
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
