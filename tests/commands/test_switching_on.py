"""Tests that ``mmgpu recommend`` says what ``optimize`` gains and how to enable it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mmengine.config import Config

from fakes.overhead import (
    make_host_bound,
    make_overhead_run,
    make_profile,
    make_short_of_cores,
)
from fakes.runs import write_run
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.config.switches import RUN
from mmgpu_hooks.schema.text import encode_text
from mmgpu_hooks.schema.tried import TrialSpec

HOOK = "dict(type='mmgpu_hooks.GPUEfficiencyHook', interval=5)"
LOADER = """\
train_dataloader = dict(
    batch_size=4, num_workers=2, persistent_workers=True,
    dataset=dict(type='ToyDataset'))
train_cfg = dict(by_epoch=True, max_epochs=12)
"""
IN_DEFAULTS = f'default_hooks = dict(gpu_efficiency={HOOK})\n{LOADER}'
IN_A_LIST = f'{LOADER}custom_hooks = [\n    {HOOK},\n]\n'
NAMES = 'param_groups,ema'


@pytest.fixture
def make(tmp_path):
    """Function that writes a host-bound run with its profile; returns its work_dir."""

    def leave(
        text: str, *, is_profiled: bool = True, small: int | None = 36, **fields: Any
    ) -> Path:
        config, folder = tmp_path / 'mine.py', tmp_path / 'work'
        config.write_text(text)
        run = make_overhead_run(config_path=str(config), work_dir=str(folder), **fields)
        waits: dict[str, Any] = {} if is_profiled else {'data_wait_s': 0.006}
        write_run(folder, make_host_bound(run=run, small_tensors=small, **waits))
        if is_profiled:
            leave_profile(folder)
        return folder

    return leave


@pytest.fixture
def overhead(ask):
    """Function that returns ``host_overhead`` of ``mmgpu recommend``'s JSON answer."""
    return lambda folder, *words: ask('recommend', folder, '--dry-run', *words)[
        'host_overhead'
    ]


def words_of(text: str) -> str:
    return ' '.join(text.split())


def test_the_answer_lists_it_below_the_loaders_table(make, capsys):
    assert main(['recommend', str(make(IN_DEFAULTS)), '--dry-run']) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) <= 25
    # what is to be typed is never wrapped
    wrapped = [line for line in out.splitlines() if 'mmgpu ' not in line]
    assert max(map(len, wrapped)) <= 80
    said = words_of(out)
    assert 'optimize takes off, all bits the same' in said
    assert 'param_groups 22.0 ms 6.0 ms 84' in said
    assert 'ema 10.0 ms 2.0 ms 9' in said
    assert 'all of these' in said
    assert said.index('Nothing to change') < said.index('param_groups')


def test_what_other_load_has_part_in_is_said_without_it(make, tmp_path, capsys):
    folder = make(IN_DEFAULTS)
    fields = dict(config_path=str(tmp_path / 'mine.py'), work_dir=str(folder))
    for wait_s, batch_s, is_listed in ((0.001, 0.05, True), (0.043, 0.08, False)):
        write_run(folder, make_short_of_cores(wait_s, batch_s, **fields))
        assert main(['recommend', str(folder), '--dry-run']) == 0
        said = words_of(capsys.readouterr().out)
        assert ('all bits the same' in said) is is_listed
        assert ('less without the other programs on this host' in said) is is_listed


def test_the_line_of_default_hooks_is_set(make, overhead, capsys):
    line = overhead(make(IN_DEFAULTS))['switch_on']
    program, *words = shlex.split(line)
    assert program == 'mmgpu'
    assert main(words) == 0
    written = Path(words[1]).with_name('mine_set.py')
    hook = Config.fromfile(written).default_hooks.gpu_efficiency
    assert hook.optimize == NAMES
    assert hook.interval == 5
    # a list of the same names is what it would write
    listed = IN_DEFAULTS.replace('interval=5', "optimize=['param_groups', 'ema']")
    Path(words[1]).write_text(listed)
    capsys.readouterr()
    assert main([*words, '--check']) == 0


def test_the_line_of_mmgpu_run_gives_the_hook_its_argument(
    make, overhead, tmp_path, monkeypatch
):
    folder = make(LOADER, hook_place=None, hook_added_by='mmgpu run')
    line = overhead(folder)['switch_on']
    assert line == f'mmgpu run --optimize={NAMES} ...'
    script = tmp_path / 'train.py'
    script.write_text('')
    started: list[Any] = []
    monkeypatch.setattr(
        'mmgpu_hooks.commands.run.become',
        lambda words, environ: started.append((words, environ)),
    )
    _, *words = shlex.split(line.replace('...', shlex.quote(str(script))))
    main(words)
    ((program, environ),) = started
    assert program == [sys.executable, str(script)]
    assert json.loads(environ[RUN]) == {'optimize': NAMES}


def test_the_line_of_a_list_says_what_to_add_where(make, overhead):
    line = overhead(make(IN_A_LIST, hook_place='custom_hooks.0'))['switch_on']
    place, _, rest = line.partition(': ')
    path, _, number = place.rpartition(':')
    argument = rest.removeprefix('add ').removesuffix(' to GPUEfficiencyHook')
    lines = Path(path).read_text().splitlines(keepends=True)
    kind = "type='mmgpu_hooks.GPUEfficiencyHook'"
    assert kind in lines[int(number) - 1]
    lines[int(number) - 1] = lines[int(number) - 1].replace(kind, f'{kind}, {argument}')
    Path(path).write_text(''.join(lines))
    assert Config.fromfile(path).custom_hooks[0].optimize == NAMES


def test_a_hook_of_a_script_is_named_as_such(make, overhead):
    line = overhead(make(LOADER, hook_place=None))['switch_on']
    assert line == (
        f"optimize='{NAMES}', as an argument of GPUEfficiencyHook in the script"
    )


def test_with_optimize_the_argument_is_written_into_the_config(make, ask):
    answer = ask('recommend', make(IN_DEFAULTS), '--optimize')
    (change,) = answer['changes']
    assert change['key'] == 'default_hooks.gpu_efficiency.optimize'
    assert (change['old'], change['new']) == (None, NAMES)
    assert change['rules'] == ['MG601', 'MG602']
    written = Config.fromfile(answer['output'])
    assert written.default_hooks.gpu_efficiency.optimize == NAMES
    assert answer['cfg_options'] is not None


def test_without_optimize_nothing_of_it_is_written(make, ask):
    answer = ask('recommend', make(IN_DEFAULTS))
    assert answer['changes'] == []
    assert answer['output'] is None


@pytest.mark.parametrize(
    ('text', 'fields', 'said'),
    [
        (IN_A_LIST, {'hook_place': 'custom_hooks.0'}, 'mine.py:6: add optimize='),
        (
            LOADER,
            {'hook_place': None, 'hook_added_by': 'mmgpu run'},
            'Instead: mmgpu run --optimize=param_groups,ema,small_tensors ...',
        ),
        (IN_DEFAULTS, {'overhead': None, 'small': None}, 'Nothing to optimise'),
    ],
    ids=['list', 'mmgpu run', 'an older run'],
)
def test_what_cannot_be_written_is_a_note(make, ask, text, fields, said):
    answer = ask('recommend', make(text, is_profiled=False, **fields), '--optimize')
    assert answer['output'] is None
    (note,) = [note for note in answer['notes'] if 'ptimi' in note]
    assert said in note


def leave_profile(folder: Path) -> None:
    """Writes a profile into a work_dir as ``mmgpu profile`` does."""
    path = folder / 'profile' / 'profile.json'
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(msgspec.json.encode(make_profile(), enc_hook=encode_text))


def test_what_was_not_measured_is_measured_by_the_line_that_says_so(
    make, overhead, tmp_path, scripted, capsys
):
    folder = make(IN_DEFAULTS, is_profiled=False)
    found = overhead(folder)
    assert {saving['name'] for saving in found['savings']} == {
        'param_groups',
        'ema',
        'small_tensors',
    }
    assert all(saving['most_saved_s'] > 0 for saving in found['savings'])
    assert found['measure'] == (
        f'mmgpu profile {tmp_path / "mine.py"} --work-dir {folder}'
    )

    def train(spec: TrialSpec) -> float:
        """Writes the profile of a fake trial; returns its seconds per iteration."""
        leave_profile(folder)
        return 0.1

    scripted.iteration_s = staticmethod(train)
    assert main(shlex.split(found['measure'])[1:]) == 0
    assert 'optimizer step' in capsys.readouterr().out
    (trial,) = scripted.started
    assert trial.spec.folder == str(folder / 'profile')
    measured = [saving['name'] for saving in overhead(folder)['savings']]
    assert measured[:2] == NAMES.split(',')


MINE = 'default_hooks.gpu_efficiency'


@pytest.mark.parametrize(
    ('text', 'fields', 'place'),
    [
        (IN_DEFAULTS, {}, MINE),
        (IN_A_LIST, {'hook_place': 'custom_hooks.0'}, 'custom_hooks.0'),
        (LOADER, {'hook_place': None, 'hook_added_by': 'mmgpu run'}, MINE),
    ],
    ids=['default_hooks', 'custom_hooks', 'mmgpu run'],
)
def test_what_was_measured_is_verified(
    make, overhead, scripted, capsys, text, fields, place
):
    folder = make(text, **fields)
    line = overhead(folder)['measure']
    assert line.startswith(f'mmgpu verify {folder}')
    assert line.endswith(f' --set {place}.optimize={NAMES}')
    scripted.iteration_s = staticmethod(
        lambda spec: 0.08 if f'{place}.optimize' in spec.settings else 0.1
    )
    assert main([*shlex.split(line)[1:], '--format', 'json']) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer['iteration_change']['value'] == pytest.approx(-0.2)
    assert {trial.spec.keeps_hook for trial in scripted.started} == {True}
