"""Tests what ``sweep``, ``save-bench`` and ``verify`` refuse before any training."""

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
    """Function that runs a command expected to fail; returns its error message."""

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
def test_configs_that_cannot_be_trained_are_refused_in_one_line(
    name, text, tmp_path, refusal
):
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
    assert {
        setting['prefetch_factor'] for setting in found if not setting['num_workers']
    } == {None}
    assert {setting['pin_memory'] for setting in found} == {True, False}
    assert '0 workers with prefetch_factor 2, 4 is not a trial' in body['notes'][0]
    specs = {Path(child.spec.folder).name: child.spec for child in scripted.started}
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
        '-m',
        'torch.distributed.run',
        '--standalone',
        '--nproc-per-node=2',
        '-m',
        'mmgpu_hooks.experiment.trial_child',
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


def test_runs_that_cannot_be_verified_are_refused_with_the_reason(tmp_path, refusal):
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
def test_iterations_out_of_range_are_refused_by_profile(iterations, config, refusal):
    assert '--iterations' in refusal('profile', config, '--iterations', iterations)


@pytest.mark.parametrize(
    ('status', 'error', 'words'),
    [
        ('failed', 'TypeError: no', 'expected a config that trains 24 iterations'),
        ('timed_out', None, 'timed out after 0: killed after 600 s'),
        ('completed', None, 'completed after 0: the training was over'),
    ],
)
def test_a_training_that_ends_before_its_profile_is_one_line(
    status, error, words, config, tmp_path, scripted, refusal
):
    scripted.ending = staticmethod(lambda spec: (status, error))
    more = ['--iterations', 1, '--work-dir', tmp_path]
    line = refusal('profile', config, *more)
    assert words in line
    assert (error or '') in line


@pytest.fixture
def configs(tmp_path: Path) -> tuple[Path, Path]:
    """Two configs that can be trained; the second has two workers."""
    second = write_config(tmp_path, num_workers=2).rename(tmp_path / 'b.py')
    return write_config(tmp_path).rename(tmp_path / 'a.py'), second


def test_two_configs_are_trained_in_turns_and_told_apart(
    configs, ask, tmp_path, scripted
):
    scripted.iteration_s = staticmethod(
        lambda spec: 0.1 if spec.config.endswith('b.py') else 0.2
    )
    answer = ask('verify', *configs, '--work-dir', tmp_path / 'w')
    assert answer['gain']['value'] == pytest.approx(1.0)
    assert answer['gain']['low'] > 0
    assert answer['iteration_change']['value'] == pytest.approx(-0.5)
    rates = [answer[f'{side}_images_per_s'] for side in ('before', 'after')]
    assert rates == pytest.approx([10.0, 20.0])
    assert answer['before'] == {
        'train_dataloader.num_workers': 0,
        'train_dataloader.persistent_workers': False,
    }
    assert answer['after'] == {
        'train_dataloader.num_workers': 2,
        'train_dataloader.persistent_workers': True,
    }
    names = [answer[f'{side}_config'] for side in ('before', 'after')]
    assert names == [str(path) for path in configs]
    assert answer['predicted_gain'] is None
    assert (answer['other_work'], answer['untrained']) == ([], [])
    # both as they are, in the same folder
    assert [child.spec.settings for child in scripted.started] == [{}, {}]
    folder = tmp_path / 'w' / 'verify'
    assert [child.spec.folder for child in scripted.started] == [
        str(folder / side) for side in ('first', 'second')
    ]
    assert answer['folder'] == str(folder)


def test_settings_are_measured_against_the_config_without_them(
    config, ask, tmp_path, scripted
):
    words = ['--set', 'train_dataloader.num_workers=2', 'model.step_s=0.5']
    more = ['--set', 'optim_wrapper.optimizer.lr=0.1', config]
    answer = ask('verify', *words, *more, '--work-dir', tmp_path / 'w')
    settings = {
        'train_dataloader.num_workers': 2,
        'model.step_s': 0.5,
        'optim_wrapper.optimizer.lr': 0.1,
    }
    assert answer['after'] == settings
    assert answer['before'] == {
        'train_dataloader.num_workers': 0,
        'model.step_s': 0.0,
        'optim_wrapper.optimizer.lr': 0.01,
    }
    assert answer['other_work'] == ['model']
    assert [child.spec.settings for child in scripted.started] == [{}, settings]
    assert [child.spec.config for child in scripted.started] == [str(config)] * 2
    assert {child.spec.keeps_hook for child in scripted.started} == {False}


def test_a_run_is_measured_against_itself_with_settings(ask, config, scripted):
    folder = write_run(config.parent / 'run', make_starved(config))
    words = ['--set', 'model.convoluted=True', 'train_cfg.val_interval=2']
    answer = ask('verify', folder, *words)
    assert answer['after'] == {'model.convoluted': True}
    assert answer['untrained'] == ['train_cfg.val_interval']
    assert answer['predicted_gain'] is None
    assert answer['folder'] == str(folder / 'verify')
    assert 'model.convoluted was not in the config' in answer['notes'][0]


def test_without_a_run_the_folder_is_the_work_dir_of_the_config(
    configs, ask, tmp_path, scripted, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert ask('verify', *configs)['folder'] == str(tmp_path / 'work_dirs/a/verify')
    first = configs[0]
    first.write_text(first.read_text() + "work_dir = 'mine'\n")
    assert ask('verify', *configs)['folder'] == str(tmp_path / 'mine/verify')


HOOK = 'default_hooks.gpu_efficiency.type=mmgpu_hooks.GPUEfficiencyHook'


def test_what_the_hook_costs_can_be_measured(config, ask, tmp_path, scripted):
    answer = ask('verify', config, '--set', HOOK, '--work-dir', tmp_path / 'w')
    assert [child.spec.keeps_hook for child in scripted.started] == [True, True]
    assert [child.spec.hook for child in scripted.started] == [None, None]
    assert HOOK.split('=')[0] in answer['after']


def test_what_stopped_goes_on_and_another_pair_is_not_mixed_up(
    configs, ask, tmp_path, scripted, capsys
):
    words = ['verify', *map(str, configs), '--work-dir', str(tmp_path / 'w')]
    stop_at_s = 15.0

    def stop(spec: TrialSpec) -> float:
        if scripted.clock_s - begin_s > stop_at_s:
            raise KeyboardInterrupt
        return 0.1

    begin_s = scripted.clock_s
    scripted.iteration_s = staticmethod(stop)
    assert main(words) == 130
    assert 'the same command goes on from there' in capsys.readouterr().err
    scripted.iteration_s = staticmethod(lambda spec: 0.1)
    scripted.started.clear()
    kept = tmp_path / 'w' / 'verify' / STORE_NAME
    body = kept.read_bytes()

    third = write_config(tmp_path, num_workers=1)
    answer = ask('verify', configs[0], third, '--work-dir', tmp_path / 'w')
    assert 'earlier trials of another second config' in answer['notes'][0]
    assert answer['gain']['count'] == 6
    whole = sum(child.trained for child in scripted.started)

    kept.write_bytes(body)
    scripted.started.clear()
    answer = ask(*words)
    assert (answer['gain']['count'], answer['notes']) == (6, [])
    assert sum(child.trained for child in scripted.started) < whole
    assert not kept.exists()


def test_equal_configs_are_trained_when_asked_for(configs, capsys, tmp_path, scripted):
    first = str(configs[0])
    words = ['verify', first, first, '--allow-equal', '--work-dir', str(tmp_path)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert 'no difference beyond noise' in out
    assert 'Nothing differs between both: what was measured is noise.' in out


def test_other_work_is_said_and_measured_all_the_same(
    configs, capsys, tmp_path, scripted
):
    first, second = configs
    second.write_text(second.read_text() + "train_dataloader['batch_size'] = 4\n")
    scripted.batch_size = staticmethod(
        lambda spec: 4 if spec.config.endswith('b.py') else 2
    )
    assert main(['verify', str(first), str(second), '--work-dir', str(tmp_path)]) == 0
    out = ' '.join(capsys.readouterr().out.split())
    assert '+100.0 % (+100.0 to +100.0 %) images/s; the second config is faster' in out
    assert 'batch_size 2 4' in out
    assert 'Not the same work: batch size differs.' in out
    # a long path is broken over lines
    assert f'first{first}' in ''.join(out.split())


BAD_PAIRS = {
    'a.py b.py --set model.step_s=1': 'expected two configs or --set, found both',
    'a.py b.py a.py': 'found 3 paths',
    'a.py': 'name a second config, or a setting: --set KEY=VALUE',
    'a.py b.py --config a.py': 'expected --config beside the folder of a run',
    'a.py --set model.step_s=1 --config a.py': 'found it beside a config',
    'gone.py b.py': 'gone.py: expected a config file, found nothing there',
    'a.py gone.py': 'gone.py: expected a config file, found nothing there',
    'gone.py --set model.step_s=1': 'gone.py: expected a config file',
    'a.py run': 'run: expected a config beside another one, found a folder',
    'run a.py': '"mmgpu compare" compares two runs',
    'run --set model.step_s=0.0': 'that nothing differs',
    'a.py broken.py': 'broken.py: expected a config that MMEngine loads, found',
    'a.py text.txt': 'text.txt: expected a config that MMEngine loads, found OSError',
    'a.py empty.py': 'empty.py: expected a config that trains, found no train_data',
    'empty.py --set model.step_s=1': 'expected a config that trains',
    'a.py --set train_cfg=None': 'found no train_cfg in it',
    'a.py a.py': 'expected a difference to measure, found that nothing differs',
    'a.py saves.py': 'found only work_dir, val_dataloader.batch_size, and these',
    'a.py --set model.step_s=0.0': 'found that nothing differs; --allow-equal',
    'a.py --set val_dataloader.num_workers=1': 'neither validate nor save',
    'a.py --set': "'--set' requires an argument",
    'a.py --set model.step_s': "expected KEY=VALUE, found 'model.step_s'",
    'a.py --set model.step_s=1 model.step_s=2': 'expected model.step_s once',
    'a.py --set train_dataloader.num_worker=8': 'a.py: expected an argument of',
    'b.py --set train_dataloader.timeout=-1': "PyTorch's DataLoader takes",
    'a.py --set modle.step_s=1': 'did you mean model?',
    'a.py --set model.stop_s=1': 'did you mean step_s?',
}


@pytest.mark.parametrize('line', BAD_PAIRS)
def test_what_cannot_be_compared_is_refused_before_it_trains(
    line, configs, refusal, tmp_path, monkeypatch, scripted
):
    monkeypatch.chdir(tmp_path)
    text = configs[0].read_text()
    write_run(tmp_path / 'run', make_starved(configs[0]))
    for name, content in {
        'broken.py': '1 / 0\n',
        'text.txt': text,
        'empty.py': "model = dict(type='A')\n",
        'saves.py': f"{text}work_dir = 'x'\nval_dataloader['batch_size'] = 1\n",
    }.items():
        (tmp_path / name).write_text(content)
    assert BAD_PAIRS[line] in refusal('verify', *line.split())
    assert scripted.started == []
    assert not list(tmp_path.rglob('verify'))
