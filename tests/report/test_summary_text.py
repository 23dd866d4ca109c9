from __future__ import annotations

from dataclasses import replace

from fakes.runs import make_evidence, make_run, make_workers
from mmgpu_hooks.diagnosis.run_diagnosis import diagnose_run
from mmgpu_hooks.evidence.summary import fold_run
from mmgpu_hooks.records import GpuDevice, GpuWindow
from mmgpu_hooks.report.comparison import render_comparison
from mmgpu_hooks.report.figures import format_bytes, format_seconds
from mmgpu_hooks.report.summary import render_training_summary


def render(**fields) -> list[str]:
    summary = fold_run(make_evidence(**fields))
    return render_training_summary(summary, diagnose_run(summary)).splitlines()


def test_the_summary_is_ten_lines_with_the_verdict_first_and_the_command_last():
    lines = render(workers=make_workers(0.55), process_cpu_s=4.0)
    assert len(lines) == 10
    assert lines[0] == 'GPUEfficiencyHook summary'
    assert lines[1].startswith('  verdict    Data-bound, too few workers: 33 %')
    assert lines[2] == '  time       step 32.0 s (67 %) | data wait 16.0 s (33 %)'
    assert lines[3] == (
        '  iteration  0.300 s mean, 0.300 s median, 0.300 s p95 over 140 steady '
        'iterations, 13.3 images/s'
    )
    assert lines[4] == (
        '  loader     num_workers=2, persistent_workers=True, prefetch_factor=2, '
        'pin_memory=False, batch_size=4 per rank'
    )
    assert lines[5] == (
        '  CPU        training process 0.67 of 8 usable cores, 2 worker(s) 0.550 s '
        'of CPU per batch, host 10 % busy (0.0 cores by others)'
    )
    assert lines[6] == '  GPU        unknown: training runs on the CPU'
    assert lines[8] == '  ended      completed after 160 iterations'
    assert lines[9] == '  next       mmgpu recommend /runs/one'


def test_the_gpu_is_told_with_its_samples():
    lines = render(
        run=make_run(device='cuda', gpu=GpuDevice(name='NVIDIA H200'), unknown={}),
        gpu=GpuWindow(30, 62.0, 25.0, 40.0, 9 * 2**30),
        gpu_mem_peak_bytes=7 * 2**30,
        gpu_mem_reserved_bytes=8 * 2**30,
    )
    assert lines[6] == (
        '  GPU        NVIDIA H200: utilisation 62 %, at 0 % for 25 % of the time '
        '(210 samples)'
    )
    assert lines[7] == (
        '  memory     peak 7.0 GiB allocated, 8.0 GiB reserved, 9.0 GiB in use on '
        'the card'
    )


def test_a_run_that_recorded_nothing_has_a_summary_too():
    lines = render(intervals=0)
    assert len(lines) == 10
    assert 'Not enough evidence: steady iterations recorded 0' in lines[1]
    assert lines[2] == '  time       nothing was measured'


def test_figures_carry_units_and_unknown_is_a_word():
    assert format_seconds(0.0123) == '12.3 ms'
    assert format_seconds(0.5) == '0.500 s'
    assert format_seconds(83.14) == '83.1 s'
    assert format_seconds(720) == '12.0 min'
    assert format_seconds(None) == 'unknown'
    assert format_bytes(812 * 2**20) == '812 MiB'
    assert format_bytes(3 * 2**30) == '3.0 GiB'
    assert format_bytes(None) == 'unknown'


def test_two_runs_are_compared_over_the_whole_training():
    before = fold_run(make_evidence(data_wait_s=0.2, step_s=0.2))
    after = fold_run(make_evidence(data_wait_s=0.05, step_s=0.2))
    text = render_comparison(before, after)
    assert 'Measured: 10.00 -> 16.00 images/s, 1.60 times as fast' in text
    assert 'data wait, mean' in text


def test_a_run_that_cannot_be_compared_says_so():
    before = fold_run(make_evidence())
    loader = replace(before.run.loader, batch_size=None)
    after = replace(before, run=replace(before.run, loader=loader))
    text = render_comparison(before, after)
    assert 'The gain is unknown' in text
    assert 'unknown' in text
