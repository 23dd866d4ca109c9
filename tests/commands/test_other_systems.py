"""Tests hook and commands in a process without Linux's modules, calls and ``/proc``.

Neither Windows nor macOS: see ``fakes/other_system.py`` for what is played.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mmgpu_hooks.schema.run import RunEvidence
from training.detection import environ
from training.toy import evidence_of

WINDOWS, MACOS = 'windows', 'macos'


class Used(NamedTuple):
    """Results of a process that simulated another operating system."""

    system: str
    found: Mapping[str, Any]
    folder: Path

    @property
    def evidence(self) -> RunEvidence:
        """Contents of the evidence file that the process's training recorded."""
        return evidence_of(self.folder / 'hooked')


@pytest.fixture(scope='module', params=[WINDOWS, MACOS])
def used(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Used:
    folder = tmp_path_factory.mktemp(request.param)
    done = subprocess.run(
        [sys.executable, '-m', 'fakes.other_system', request.param, str(folder)],
        env=environ(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return Used(request.param, json.loads(done.stdout.splitlines()[-1]), folder)


def test_training_is_the_same_and_has_its_verdict(used: Used):
    plain, hooked = used.found['training']['losses']
    assert len(set(plain)) == len(plain) == 48
    assert hooked == plain
    log = used.found['training']['log']
    assert '  verdict    ' in log
    assert 'switched off' not in log


def test_the_time_ledger_needs_nothing_of_linux(used: Used):
    evidence = used.evidence
    assert evidence.end.status == 'completed'
    assert evidence.sources_off == ()
    assert sum(interval.iterations for interval in evidence.intervals) == 48
    for part in ('data_wait', 'step', 'checkpoint_save', 'validation'):
        assert evidence.end.ledger_s[part] > 0, part
    assert [save.wall_s > 0 for save in evidence.save_records] == [True, True]
    last = evidence.intervals[-1]
    assert last.process_cpu_s is not None


def test_what_the_system_lacks_is_unknown_and_no_zero(used: Used):
    evidence = used.evidence
    host = evidence.run.host
    assert host.cgroup_cpu_cores is None
    assert host.affinity_cpus is None
    assert host.shm_total_bytes is None
    assert (host.open_files_soft is None) == (used.system == WINDOWS)
    assert host.ram_total_bytes is not None
    for save in evidence.save_records:
        assert save.run_delay_s is None
    window = evidence.intervals[-1].host
    assert window is None or window.throttled_s is None


def test_a_recorded_run_is_judged_and_its_config_rewritten(used: Used):
    asked = used.found['recommend']
    assert (asked['code'], asked['errors']) == (0, '')
    answer = json.loads(asked['out'])
    assert answer['verdict']['name'] == 'data_bound_workers'
    written = used.folder / 'golden' / 'config_recommended.py'
    assert written.is_file()


def test_a_run_of_its_own_has_its_page(used: Used):
    asked = used.found['report']
    assert (asked['code'], asked['errors']) == (0, '')
    assert 'Data-bound' in (used.folder / 'page.html').read_text(encoding='utf-8')


@pytest.mark.parametrize('name', ['predict', 'compare', 'explain'])
def test_a_command_that_only_reads_answers(used: Used, name: str):
    asked = used.found[name]
    assert (asked['code'], asked['errors']) == (0, '')
    assert asked['out']


def test_the_hook_is_switched_on_and_off_in_a_config(used: Used):
    assert used.found['enable']['code'] == 0, used.found['enable']['errors']
    assert 'GPUEfficiencyHook' in used.found['enable']['config']
    assert used.found['disable']['code'] == 0, used.found['disable']['errors']
    assert used.found['disable']['config'] == used.found['config']


def test_a_setting_is_changed_in_place(used: Used):
    asked = used.found['set']
    assert asked['code'] == 0, asked['errors']
    assert used.found['config'] == (
        'train_dataloader = dict(num_workers=3, batch_size=2)\n'
    )
    # of two rewrites at once one may be lost there
    said = asked['out'] + asked['errors']
    assert ('this system has no file locks' in said) == (used.system == WINDOWS)
