"""What ``mmgpu recommend`` writes, and what it only advises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.runs import (
    GIB,
    make_evidence,
    make_inside_workers,
    make_run,
    make_workers,
    render_evidence,
    steady,
)
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.schema import HostLimits, LoaderSettings

HOST = HostLimits(
    logical_cpus=2,
    affinity_cpus=2,
    usable_cores=2.0,
    ram_available_bytes=64 * GIB,
    shm_free_bytes=16 * GIB,
    open_files_soft=65536,
)


def ask(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    count: int,
    *,
    device: str = 'cpu',
    **fields: Any,
) -> dict[str, Any]:
    """The answer to a run with so many workers; ``output`` is its written text."""
    config = folder / 'mine.py'
    config.write_text(
        f'train_dataloader = dict(num_workers={count}, persistent_workers=True)\n'
    )
    run = make_run(
        config_path=str(config),
        host=HOST,
        device=device,
        loader=LoaderSettings(
            num_workers=count,
            persistent_workers=True,
            prefetch_factor=2,
            pin_memory=False,
            batch_size=4,
            batches_per_epoch=100,
            dataset_length=400,
            start_method='fork',
        ),
    )
    path = folder / 'run' / '20261120_101500' / 'vis_data' / 'gpu_efficiency.jsonl'
    path.parent.mkdir(parents=True)
    path.write_text(render_evidence(make_evidence(run=run, **fields)))
    assert main(['recommend', str(folder / 'run'), '--format', 'json']) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    written = config.with_name('mine_recommended.py')
    answer['output'] = written.read_text() if written.exists() else None
    return answer


def loading(occupancy_s: float, cpu_s: float, count: int, delay_s: float = 0.0) -> Any:
    """Workers whose batch takes so long, of which so much is CPU."""
    return make_inside_workers(
        occupancy_s,
        count=count,
        std_s=0.01,
        cpu_s=20 * cpu_s,
        run_delay_s=20 * delay_s,
        batch_cpu=steady(cpu_s, 20),
        worker_batches=(20 // count,) * count,
    )


def test_workers_that_wait_for_storage_outnumber_the_cores(tmp_path, capsys):
    # 125 ms for a batch, of which 4 ms are CPU; the step takes 25 ms
    fields = {'data_wait_s': 0.0375, 'step_s': 0.025, 'process_cpu_s': 0.06}
    fields |= {'workers': loading(0.125, 0.004, 2)}
    answer = ask(tmp_path, capsys, 2, **fields)
    (change,) = answer['changes']
    assert change['new'] in (5, 6)
    assert change['predicted_iter_s'] == pytest.approx(0.027, rel=0.1)
    assert 'PyTorch will warn' in change['reason']
    assert f'num_workers={change["new"]}' in answer['output']


def test_they_are_no_finding_and_stay(tmp_path, capsys):
    fields = {'data_wait_s': 0.001, 'step_s': 0.025, 'process_cpu_s': 0.06}
    answer = ask(tmp_path, capsys, 5, workers=loading(0.125, 0.004, 5), **fields)
    assert answer['changes'] == []
    assert answer['output'] is None
    assert 'MG105' not in [finding['code'] for finding in answer['findings']]


def test_waiting_for_a_core_is_no_waiting_for_storage(tmp_path, capsys):
    # 0.3 s for a batch: a tenth on a core, the rest ready to run
    fields = {'data_wait_s': 0.01, 'step_s': 0.03, 'process_cpu_s': 0.4}
    fields |= {'workers': loading(0.3, 0.03, 5, 0.26), 'system_cpu_pct': 100.0}
    answer = ask(tmp_path, capsys, 5, **fields)
    assert 'MG105' in [finding['code'] for finding in answer['findings']]


@pytest.mark.parametrize(('step_s', 'is_written'), [(0.4, False), (0.25, True)])
def test_beside_other_load_only_what_is_right_without_it_is_written(
    tmp_path, capsys, step_s, is_written
):
    # a batch takes 0.2 s of CPU, and 0.5 s beside programs that have the cores; alone,
    # one worker keeps up with a step of 0.4 s
    answer = ask(
        tmp_path,
        capsys,
        1,
        data_wait_s=0.5 - step_s,
        step_s=step_s,
        process_cpu_s=0.4,
        system_cpu_pct=100.0,
        workers=loading(0.5, 0.2, 1, 0.3),
    )
    assert (answer['output'] is not None) is is_written
    assert [change['new'] for change in answer['changes']] == [2] * is_written
    said = [one for one in answer['advice'] if 'num_workers 1 -> 2' in one]
    assert len(said) == (not is_written)
    assert all('beside the other programs' in one for one in said)


def test_a_gain_that_may_be_none_is_advice(tmp_path, capsys):
    # one core is busy with the step: a second worker gains a tenth at most
    answer = ask(
        tmp_path,
        capsys,
        1,
        data_wait_s=0.066,
        step_s=0.3,
        process_cpu_s=1.9,
        system_cpu_pct=90.0,
        workers=loading(0.317, 0.29, 1),
    )
    assert answer['changes'] == []
    assert answer['output'] is None
    assert 'not sure enough' in answer['no_change_reason']
    assert 'too unsure to be written' in answer['advice'][0]
    assert '9 times in 10' in answer['advice'][0]


def test_pinned_memory_is_advice(tmp_path, capsys):
    starved = {'workers': make_workers(0.6), 'process_cpu_s': 0.4, 'data_wait_s': 0.3}
    answer = ask(tmp_path, capsys, 1, device='cuda', **starved)
    assert [change['key'] for change in answer['changes']] == [
        'train_dataloader.num_workers'
    ]
    assert 'pin_memory' not in answer['output']
    assert any('pin_memory=True' in one for one in answer['advice'])
