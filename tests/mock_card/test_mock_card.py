"""Tests the records of trainings against the mock driver's known GPU values."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from mmgpu_hooks.commands.main import main
from mmgpu_hooks.experiment.demo_dataset import write_demo_dataset
from mmgpu_hooks.judge.card_memory import find_card_figures
from mmgpu_hooks.judge.memory import find_card_room
from mmgpu_hooks.judge.standstill import Rank
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.judge.why import judge_end
from mmgpu_hooks.schema.judged import HostNow
from mock_card.trainings import SquareWave, Training
from training.detection import render_config
from training.toy import scalar_lines

MIB = 2**20
OFTEN = {'gpu_sample_period_s': 0.05}
GONE = HostNow(is_alive=False)
L40S_OF_6 = 'GPU-14050000-0000-0000-0000-000000000006'
OTHERS = 30 * 2**30

CARDS: dict[str, tuple[str, dict[str, str], str | None, str | None]] = {
    # name: kind, environment, the card's name, the end of its UUID
    't4': ('t4', {'CUDA_VISIBLE_DEVICES': '3'}, 'NVIDIA T4', '3'),
    'two_of_eight': ('l40s', {'CUDA_VISIBLE_DEVICES': '5,6'}, 'NVIDIA L40S', '5'),
    'by_uuid': ('l40s', {'CUDA_VISIBLE_DEVICES': L40S_OF_6}, 'NVIDIA L40S', '6'),
    'by_address': (
        'a100',
        {'CUDA_VISIBLE_DEVICES': '2', 'MOCK_CARD_NAMED_BY': 'pci'},
        'NVIDIA A100-SXM4-40GB',
        '2',
    ),
    'by_nothing': ('h100', {'MOCK_CARD_NAMED_BY': 'nothing'}, None, None),
}
HOT = {
    'thermal': {'temperature_gpu_c': 81},
    'power': {'current_draw_mw': 63_500},
    'clocks': {'sm_current': 1110},
    'clocks_throttle_reasons': {'gpu_idle': False, 'sw_power_cap': True},
}
"""Mock driver's values of GPUs whose clocks are throttled."""

BUSY = {'utilization': {'gpu': 71, 'memory': 0}}

LEAK_MIB = 3
"""MiB of tensors that each train step leaks."""

SHARED = {
    'memory': {'used_bytes': OTHERS, 'free_bytes': 49 * 2**30},
    'processes': [{'pid': 4242, 'type': 'C', 'used_memory_mib': OTHERS // MIB}],
}
"""Mock driver's values of a GPU with another process's memory."""


def failure(mode: str, **more: object) -> dict[str, object]:
    return {'failure': {'mode': mode, **more}, **BUSY}


LATER = {'after_calls': 60}
"""Number of good driver calls before a planned fault in the middle of a training."""

FAILING = {
    'plain': BUSY,
    'lost': failure('lost', **LATER),
    'fallen': failure('fallen_off_bus', xid={'code': 79}, **LATER),
    'ecc': failure('ecc_uncorrectable', **LATER),
    'flaky': failure('lost', probability=0.02),
}

WAVES = {'even': (80, 0.3, 0.3, 12), 'mostly_idle': (100, 0.4, 1.2, 5)}
"""Square waves of utilisation: per cent, seconds high and low, number of waves."""


@pytest.fixture(scope='module')
def squares() -> dict[str, SquareWave]:
    """Square waves of GPU utilisation, by training; empty until these have run."""
    return {}


@pytest.fixture(scope='module')
def trainings(mock_cards, squares) -> dict[str, Training]:
    """All trainings on mock GPUs, run four at a time."""
    found = {
        name: mock_cards.plan(
            name, iterations=10 + round((up_s + down_s) * waves / 0.1), step_s=0.1
        )
        for name, (_, up_s, down_s, waves) in WAVES.items()
    }
    found |= {
        'fits': mock_cards.plan(
            'fits',
            model={'held_mib': 32, 'steps_mib': {'8': 40}},
            hook=OFTEN,
            driver=SHARED,
        ),
        'lacking': mock_cards.plan('lacking', step_s=0.01, MOCK_CARD_LACKS='all'),
        'full': mock_cards.plan(
            'full',
            step_s=0.01,
            model={'held_mib': 32, 'steps_mib': {'12': 80}},
            MOCK_CARD_MIB='100',
        ),
        'leaks': mock_cards.plan(
            'leaks',
            iterations=60,
            step_s=0.01,
            interval=1,
            model={'leak_mib': LEAK_MIB},
        ),
        'grows': mock_cards.plan(
            'grows',
            iterations=60,
            step_s=0.01,
            dataset='GrowingDataset',
            batch_size=1,
            benchmark=True,
        ),
    }
    for name, (kind, environ, *_) in CARDS.items():
        found[name] = mock_cards.plan(name, kind, hook=OFTEN, driver=HOT, **environ)
    for name, driver in FAILING.items():
        hook = None if name == 'plain' else OFTEN
        found[name] = mock_cards.plan(name, iterations=40, hook=hook, driver=driver)
    for name, (pct, up_s, down_s, _) in WAVES.items():
        squares[name] = SquareWave(found[name], pct, up_s=up_s, down_s=down_s)
        squares[name].start()
    codes = mock_cards.train()
    for square in squares.values():
        square.stop()
    failed = [name for name, code in codes.items() if code]
    assert failed == ['full'], [found[name].printed for name in failed]
    return found


@pytest.mark.parametrize('name', CARDS)
def test_the_card_is_named(trainings, name):
    *_, card, end = CARDS[name]
    run = trainings[name].run
    assert run.meta.device == 'cuda'
    found = run.meta.gpu
    if card is None:
        assert found is None
        assert 'nothing is known that names the GPU' in run.figures.unknown['GPU']
        return
    assert found is not None and found.uuid is not None
    assert (found.name, found.uuid[-1]) == (card, end)
    gpu = run.figures.gpu
    assert gpu is not None
    assert (gpu.temperature_c, gpu.sm_clock_mhz) == (81, 1110)
    assert (gpu.throttled_pct, gpu.throttle_reasons) == (100, ['power_cap'])
    assert 'no GPM counters' in run.figures.unknown['GPU sm_active_pct']


@pytest.mark.parametrize('name', ['lost', 'fallen', 'ecc', 'flaky'])
def test_a_card_that_fails_ends_its_figures_alone(trainings, name):
    training = trainings[name]
    run = training.run
    assert training.losses == trainings['plain'].losses
    assert run.status == 'completed'
    assert training.printed.count('is switched off for this run') <= 1
    if name in ('lost', 'fallen'):
        assert [off.source for off in run.evidence.sources_off] == ['GPU']
        *_, last = (record for record in run.intervals if record.gpu is not None)
        assert last.gpu is not None and last.gpu.util_pct == pytest.approx(71)
        assert 0 < last.iteration < run.intervals[-1].iteration
        assert f'until iteration {last.iteration}' in training.printed
        assert judge_end([], [Rank(run.evidence, GONE)]).cause == 'gpu_lost'


def test_every_page_says_until_when_a_lost_card_was_measured(
    trainings, tmp_path, capsys
):
    folder, run = str(trainings['lost'].work_dir), trainings['lost'].run
    page = tmp_path / 'page.html'
    assert main(['recommend', folder, '--dry-run', '--details']) == 0
    assert main(['why', folder]) == 0
    assert main(['report', folder, '-o', str(page)]) == 0
    said = ' '.join(capsys.readouterr().out.split())
    measured = f'GPU utilisation until iteration {run.figures.gpu_last_iteration} 71 %'
    assert measured in said
    assert 'It came to its end, but: The GPU is lost.' in said
    assert measured in page.read_text().replace('\xa0', ' ')


def test_memory_peaks_are_those_of_the_interval(trainings):
    run = trainings['fits'].run
    peaks = [record.gpu_mem_peak_bytes for record in run.intervals]
    assert all(peak is not None for peak in peaks)
    # the second interval holds the eighth step; LoggerHook resets the peak after each
    assert [round((peak or 0) / MIB) for peak in peaks] == [32, 72, 32, 32]
    for record in run.intervals[1:]:
        assert record.gpu_mem_reserved_bytes is not None
        assert 72 * MIB <= record.gpu_mem_reserved_bytes <= 120 * MIB
    assert 0 < (run.figures.inactive_bytes or 0) < 4 * MIB
    # what others hold is no room for training
    assert run.figures.gpu is not None and run.figures.gpu.mem_used_bytes == OTHERS
    assert run.meta.gpu is not None and run.meta.gpu.name == 'NVIDIA H100 80GB HBM3'
    card, reserved = find_card_room(run), run.figures.gpu_mem_reserved_bytes or 0
    assert card is not None and card.total_bytes == 80 * 2**30
    assert card.room_bytes == card.total_bytes - (OTHERS - reserved)
    # a Hopper has the counter
    assert run.figures.gpu.sm_active_pct is not None


def test_what_the_driver_shows_is_the_sum_of_its_parts(trainings):
    run = trainings['fits'].run
    card = find_card_figures(run)
    assert card is not None
    assert card.used_bytes == OTHERS
    assert round(card.peak_bytes / MIB) == 72
    # the eighth step took more than the others, with a batch like theirs
    assert card.growth is not None
    assert card.growth.iteration == run.intervals[1].iteration
    assert 'no larger than others before' in card.sentence
    assert 'MG410' in {finding.code for finding in diagnose_run(run).findings}


def test_a_call_that_is_missing_ends_its_figures_of_memory_alone(trainings):
    training = trainings['lacking']
    lines = scalar_lines(training.work_dir)
    assert len(lines) == 4
    assert all(line['gpu_mem_peak_mib'] > 0 for line in lines)
    assert 'gpu_mem_peak_mib: ' in training.printed
    assert 'is switched off for this run' not in training.printed
    run = training.run
    assert (
        (run.figures.gpu_mem_reserved_bytes or 0)
        >= (run.figures.gpu_mem_peak_bytes or 0)
        > 0
    )
    windows = [record.cuda_memory for record in run.intervals]
    assert all(window is not None and window.allocated_bytes for window in windows)
    # an allocator that is not known may leave them at zero
    assert run.figures.inactive_bytes is None
    for figure in ('inactive_bytes', 'retries'):
        assert 'which allocator' in run.figures.unknown[f'GPU memory {figure}']


def test_why_names_a_card_that_is_full_and_its_batch(trainings):
    training = trainings['full']
    assert 'OutOfMemoryError' in training.printed
    run = training.run
    assert run.status == 'failed'
    why = judge_end([], [Rank(run.evidence, GONE)])
    assert (why.cause, why.certainty) == ('oom_gpu', 'sure')
    assert why.proof[-1].text == 'after 11 iterations, with 2 images in a batch'


def test_tensors_that_pile_up_are_told(trainings: dict[str, Training]) -> None:
    found = {
        finding.code: finding
        for finding in diagnose_run(trainings['leaks'].run).findings
    }
    _, _, said = found['MG404'].detail.partition('Live tensors grow by ')
    grown, unit = said.split()[:2]
    planted = 1000 * LEAK_MIB / {'MiB': 1, 'GiB': 1024}[unit]
    assert float(grown) == pytest.approx(planted, rel=0.15)
    # twin: the same card, and a peak that comes and goes
    fits = diagnose_run(trainings['fits'].run).findings
    assert 'MG404' not in [finding.code for finding in fits]


@pytest.mark.parametrize(
    ('name', 'is_on', 'sizes'), [('leaks', False, 1), ('grows', True, 60)]
)
def test_sizes_of_batches_stand_beside_cudnn_benchmark(trainings, name, is_on, sizes):
    run = trainings[name].run
    assert run.meta.cudnn_benchmark is is_on
    assert sum(interval.new_batch_sizes or 0 for interval in run.intervals) == sizes


def test_cudnn_benchmark_is_advised_against_where_sizes_vary(trainings, capsys):
    folder = str(trainings['grows'].work_dir)
    assert main(['recommend', folder, '--dry-run', '--format', 'json']) == 0
    advice = ' '.join(json.loads(capsys.readouterr().out)['advice'])
    assert 'batches have 60 padded sizes in 60 iterations' in advice


@pytest.mark.parametrize('name', WAVES)
def test_a_wave_is_shown_as_it_was_planted(trainings, squares, name):
    training, square = trainings[name], squares[name]
    run = training.run
    gpu, start_s = run.figures.gpu, run.meta.started_unix_s
    assert gpu is not None and gpu.util_pct is not None and gpu.zero_pct is not None
    mean_pct, zero_pct = square.planted(
        start_s + run.intervals[0].elapsed_s, start_s + run.intervals[-1].elapsed_s
    )
    zero_error = math.sqrt(zero_pct * (100 - zero_pct) / gpu.samples)
    error = zero_error * WAVES[name][0] / 100
    # 0.2 s between two samples, and time for a busy machine
    assert gpu.samples >= 25
    assert gpu.util_pct == pytest.approx(mean_pct, abs=max(3.0, 2 * error))
    assert gpu.zero_pct == pytest.approx(zero_pct, abs=max(3.0, 2 * zero_error))
    assert 'gpu_util_pct: ' in training.printed
    windows = [record.gpu for record in run.intervals if record.gpu]
    hot = [window.temperature_c for window in windows if window.temperature_c]
    assert hot == sorted(hot) and hot[0] < hot[-1] <= square.temperature_c


TAIL = """
custom_imports = dict(imports=['mock_card.card', 'mmgpu_hooks'])
custom_hooks = [dict(type='training.toy.LossTape', path='losses.json'), {hook}]
"""


@pytest.mark.slow
def test_rtmdets_card_is_measured_and_its_losses_are_the_same(mock_cards, tmp_path):
    write_demo_dataset(tmp_path, images=12, width=128, height=96)
    options: dict[str, Any] = {'batch_size': 2, 'num_workers': 2, 'epochs': 2}
    with_hook, without = (
        mock_cards.plan_config(
            name,
            render_config(
                tmp_path, log_interval=3, tail=TAIL.format(hook=hook), **options
            ),
            driver=BUSY,
            MOCK_CARD_LACKS='all',
        )
        for name, hook in (('with', "dict(type='GPUEfficiencyHook')"), ('without', ''))
    )
    codes = mock_cards.train()
    assert set(codes.values()) == {0}, with_hook.printed
    run = with_hook.run
    assert len(with_hook.losses) == 12
    assert with_hook.losses == without.losses
    assert 'is switched off for this run' not in with_hook.printed
    assert run.figures.gpu is not None and run.meta.gpu is not None
    assert run.meta.gpu.name == 'NVIDIA H100 80GB HBM3'
    assert run.figures.gpu.util_pct == pytest.approx(71)
    assert run.figures.gpu_mem_peak_bytes is not None
    assert run.figures.gpu_mem_peak_bytes > 4 * (run.meta.parameters or 0) > 0
    assert run.figures.gpu_idle_pct is not None
    line = scalar_lines(with_hook.work_dir)[-1]
    assert line['gpu_util_pct'] == pytest.approx(71)
    assert line['gpu_mem_peak_mib'] > 0
