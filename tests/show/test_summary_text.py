from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import (
    add_to_end,
    make_evidence,
    make_gpu_fields,
    make_gpu_run,
    make_host_window,
    make_inside_workers,
    make_model_bytes,
    make_ranks,
    make_run,
    make_workers,
    steady,
)
from mmgpu_hooks.judge.ranks import find_slowest, fold_ranks
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.schema import (
    CudaMemoryWindow,
    GpuWindow,
    HostLimits,
    LoaderSettings,
    RunEvidence,
    SlowSample,
)
from mmgpu_hooks.show.summary import render_training_summary

HOOKS = {'LoggerHook': 0.12, 'EMAHook': 0.06, 'RuntimeInfoHook': 0.004}
FULL_RUN = Path(__file__).with_name('full_run.txt')


def render_of(evidence: RunEvidence, *others: RunEvidence) -> str:
    run, *ranks = map(Run, (evidence, *others))
    compared = fold_ranks(run, ranks)
    slowest = find_slowest(compared, [run, *ranks])
    judged = diagnose_run(slowest or run)
    return render_training_summary(run, judged, compared)


def render(**fields: Any) -> str:
    return render_of(make_evidence(**fields))


def unwrapped(text: str) -> str:
    return ' '.join(text.split())


def full_run() -> RunEvidence:
    """A run without a GPU in which everything else is known."""
    evidence = make_evidence(
        hooks_s=0.01,
        by_hook=HOOKS,
        workers=make_inside_workers(0.55),
        process_cpu_s=4.0,
        host=make_host_window(io_pressure_pct=14.0),
        first_waits=1,
    )
    assert evidence.end is not None
    end = replace(evidence.end, saves=2)
    evidence = replace(evidence, model=make_model_bytes(), end=end)
    return add_to_end(
        evidence, validation=6.0, startup=2.5, checkpoint_save=1.2, other=0.11
    )


def test_a_run_on_the_cpu_word_for_word():
    assert f'{render_of(full_run())}\n' == FULL_RUN.read_text()


def test_the_verdict_is_first_and_the_command_last():
    lines = render_of(full_run()).splitlines()
    assert lines[0] == 'GPUEfficiencyHook summary'
    assert lines[1].startswith('  verdict    Data-bound')
    assert lines[-1] == '  next       mmgpu recommend /runs/one'


@pytest.mark.parametrize('ranks', [1, 4, 64])
def test_it_fits_into_a_log(ranks: int):
    if ranks == 1:
        text = render_of(full_run())
    else:
        waits = [0.006] * (ranks - 1) + [0.052]
        fields = {'workers': make_inside_workers(), 'process_cpu_s': 4.0}
        text = render_of(*make_ranks(waits, hooks_s=0.002, by_hook=HOOKS, **fields))
    lines = text.splitlines()
    assert len(lines) <= 34
    assert max(map(len, lines)) <= 100
    # so that they can be told from the other lines of a log
    assert all(line.startswith('  ') for line in lines[1:])
    assert text.isascii()


def test_it_is_rendered_at_once():
    evidence = full_run()
    summary = Run(evidence)
    diagnosis = diagnose_run(summary)
    since = time.process_time()
    for _ in range(10):
        render_training_summary(summary, diagnosis)
    assert (time.process_time() - since) / 10 < 0.05


def test_the_parts_of_the_ledger_add_up_in_sight():
    lines = render_of(full_run()).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith('  time'))
    shares = {}
    for line in lines[first + 1 :]:
        label, _, rest = line.strip().partition('  ')
        if '%' in rest:
            shares[label] = float(rest.split('%')[0].split()[-1])
        if label == 'all':
            break
    whole = shares.pop('all')
    assert whole == 100.0
    assert sum(shares.values()) == pytest.approx(100.0, abs=0.05 * len(shares))
    assert next(iter(shares)) == 'step'
    assert list(shares)[-1] == 'other'


def test_other_is_shown_when_there_is_none_of_it():
    assert 'other             0.0 ms    0.0 %    0.0 ms  in none of the' in render()
    slow = render_of(add_to_end(make_evidence(), other=12.0))
    assert 'other             12.0 s   20.0 %   75.0 ms  in none of the' in slow


def test_hooks_are_named_when_they_take_their_share():
    evidence = make_evidence(hooks_s=0.02, by_hook={'A': 0.2, 'B': 0.1, 'C': 0.05})
    text = unwrapped(render_of(evidence))
    assert 'A 1.600 s, B 0.800 s, C 0.400 s, rest 0.400 s' in text
    whole = {'A': 0.2, '(unattributed)': 0.05, 'B': 0.1, 'C': 0.04}
    text = unwrapped(render(hooks_s=0.02, by_hook=whole))
    assert 'C 0.320 s, (unattributed) 0.400 s' in text
    cheap = unwrapped(render(hooks_s=0.02, by_hook={'A': 0.399, 'B': 0.0001}))
    assert 'A 3.192 s other' in cheap


def test_evidence_without_the_newer_figures_has_a_summary_too():
    text = unwrapped(render(workers=make_workers(0.55), process_cpu_s=4.0))
    assert 'time per batch unknown: the workers were not measured from inside' in text
    assert 'seen from outside, 0.550 s of CPU and 0.0 ms waiting for a core per' in text
    assert 'GPU unknown: training runs on the CPU' in text
    assert 'GPU memory unknown: training runs on the CPU; the process holds' in text


def test_a_run_that_recorded_nothing_has_a_summary_too():
    lines = render(intervals=0).splitlines()
    assert 'Not enough evidence: steady iterations recorded 0' in lines[1]
    assert '  time       nothing was measured; completed after 0 iterations' in lines
    assert '  loader     num_workers=2 (persistent), prefetch_factor=2' in lines[5][:58]


def test_without_workers_the_loop_is_said_to_load():
    loader = LoaderSettings(
        num_workers=0,
        persistent_workers=False,
        prefetch_factor=None,
        pin_memory=False,
        batch_size=4,
        batches_per_epoch=100,
        dataset_length=400,
    )
    text = render(run=make_run(loader=loader))
    assert (
        'num_workers=0: the training process makes every batch itself, batch_' in text
    )
    assert 'unknown: no interval' not in text


def test_workers_that_could_not_be_read_are_unknown_with_the_reason():
    run = make_run(unknown={'loader workers': '/proc is hidden'})
    assert 'workers unknown: /proc is hidden' in render(run=run)
    assert 'workers unknown: no interval has them' in render()


def test_why_the_inside_of_workers_is_unknown_is_said():
    run = make_run(unknown={'loader inside': 'they were running before'})
    text = render(run=run, workers=make_workers(0.1))
    assert 'time per batch unknown: they were running before' in text


def test_uneven_workers_are_remarked_on():
    uneven = make_inside_workers(worker_batches=(15, 5))
    assert 'a worker made 25 to 75 % of the batches' in unwrapped(
        render(workers=uneven)
    )
    assert 'of the batches' not in render(workers=make_inside_workers())


@pytest.mark.parametrize(
    ('fields', 'clause'),
    [
        (
            {'worker_affinity_cpus': (4, 1, 4)},
            'worker 1 may run on 1 CPU(s), others on 4',
        ),
        (
            {'worker_run_delay_s': (0.1, 0.1, 3.0), 'window_s': 10.0},
            'worker 2 waits for a core 30 % of the time, others 1.0 %',
        ),
        (
            {'worker_cpu_s': (60.0, 3.0, 3.0), 'worker_batches': (10, 10, 10)},
            'worker 0 takes 6.000 s of CPU for a batch, others 0.300 s',
        ),
    ],
)
def test_a_worker_that_stands_out_is_named(fields: dict[str, Any], clause: str):
    text = unwrapped(render(workers=make_inside_workers(count=3, **fields)))
    assert clause in text


def test_workers_that_are_alike_are_not_named():
    alike = make_inside_workers(
        window_s=10.0,
        worker_affinity_cpus=(2, 2),
        worker_run_delay_s=(1.0, 1.9),
        worker_cpu_s=(5.0, 9.0),
    )
    text = unwrapped(render(workers=alike))
    assert re.search(r'worker \d (may|waits|takes)', text) is None


def test_a_path_that_no_ascii_terminal_takes_does_no_harm():
    slow = (SlowSample(seconds=1.5, index=3, image='7 b\u00e4r/\U0001f43b.jpg'),)
    text = render(workers=make_inside_workers(slowest=slow))
    assert 'slowest sample 1.500 s: index 3, image 7 b\\xe4r/\\U0001f43b.jpg' in text


TROUBLE = {
    'cpu_pressure_pct': (55.0, 'some task waited for a core 55 % of 42.0 s'),
    'memory_pressure_pct': (2.0, 'some task waited for memory 2.0 % of 42.0 s'),
    'throttled_s': (
        0.6,
        'the CPU quota held tasks back for 4.800 s (10 % of the run)',
    ),
    'swap_in_bytes': (2**30, 'the host swapped 8.0 GiB in and 0 MiB out'),
    'ram_available_bytes': (2**30, 'memory fell to 1.0 GiB free of 64.0 GiB'),
    'shm_free_bytes': (2**20, '/dev/shm fell to 1 MiB free of 32.0 GiB'),
    'open_files': (65000, '65000 of 65536 file descriptors were open'),
}


@pytest.mark.parametrize('figure', TROUBLE)
def test_the_host_is_remarked_on_only_when_it_is_in_trouble(figure: str):
    value, sentence = TROUBLE[figure]
    troubled = make_host_window(**{figure: value})
    fields = {'process_cpu_s': 4.0, 'system_cpu_pct': None}
    assert sentence in unwrapped(render(host=troubled, **fields))
    at_ease = render(host=make_host_window(), **fields)
    assert '  CPU        training process 0.67 of 8 usable cores\n' in at_ease


def test_confined_workers_are_remarked_on():
    fields = {'process_cpu_s': 4.0}
    confined = make_inside_workers(affinity_cpus=1)
    text = unwrapped(render(workers=confined, **fields))
    assert 'a worker may run on 1 CPU(s) only, the process on 8' in text
    free = make_inside_workers(affinity_cpus=8)
    assert 'may run on' not in render(workers=free, **fields)


def test_the_gpu_is_told_with_its_samples():
    evidence = make_evidence(run=make_gpu_run(), **make_gpu_fields())
    text = unwrapped(render_of(evidence))
    assert (
        'GPU NVIDIA H100 80GB HBM3: utilisation 62 % (std 40 %), 0 % for 25 % of the '
        'time (420 samples by the driver); idle 31 % of an iteration (140 timed); '
        '1755 MHz, 412 W, 61 C at most, 41 % of its SMs active; clocks held down 12 % '
        'of the time (power_cap 12 %)' in text
    )
    assert (
        'memory peak 7.0 GiB allocated, 8.0 GiB reserved, 9.0 GiB of 80.0 GiB in use '
        'on the card largest batch 4.3 M pixels, most boxes in one 212' in text
    )


def test_why_idling_is_unknown_is_said():
    fields = {**make_gpu_fields(), 'gpu_idle_pct': None}
    run = make_gpu_run(unknown={'GPU idle': 'the step is no function of ours'})
    text = unwrapped(render(run=run, **fields))
    assert 'idle time unknown: the step is no function of ours' in text
    text = unwrapped(render(run=make_gpu_run(), **fields))
    assert 'idle time unknown: no interval has it' in text


def test_others_on_the_card_are_remarked_on():
    gpu = GpuWindow(samples=30, util_pct=62.0, others_mem_bytes=3 * 2**30)
    text = unwrapped(render(run=make_gpu_run(), gpu=gpu))
    assert 'other processes hold 3.0 GiB of it' in text
    quiet = replace(gpu, others_mem_bytes=0)
    assert 'other processes' not in render(run=make_gpu_run(), gpu=quiet)


def test_trouble_of_the_allocator_is_remarked_on():
    window = CudaMemoryWindow(
        allocated_bytes=2**30, retries=1, ooms=0, inactive_bytes=4 * 2**30
    )
    fields = {**make_gpu_fields(), 'cuda_memory': window}
    text = unwrapped(render(run=make_gpu_run(), **fields))
    assert '8 allocation(s) succeeded only after a retry' in text
    assert 'up to 4.0 GiB of it fragmented' in text
    assert 'out-of-memory' not in text


def test_growing_memory_is_remarked_on():
    evidence = make_evidence(20, run=make_gpu_run())
    growing = tuple(
        replace(
            record,
            cuda_memory=CudaMemoryWindow(
                allocated_bytes=index * 2**22, retries=0, ooms=0, inactive_bytes=0
            ),
        )
        for index, record in enumerate(evidence.intervals)
    )
    text = unwrapped(render_of(replace(evidence, intervals=growing)))
    assert 'live tensors grow by 200 MiB per 1000 iterations' in text


def test_the_static_part_of_memory_is_told():
    evidence = replace(make_evidence(), model=make_model_bytes())
    sentence = (
        'static: parameters 160 MiB (41.9 M), gradients 160 MiB, optimizer 160 MiB, '
        'buffers 1 MiB'
    )
    assert sentence in unwrapped(render_of(evidence))
    averaged = replace(make_model_bytes(), ema_bytes=2**30)
    text = unwrapped(render_of(replace(evidence, model=averaged)))
    assert f'{sentence}, averaged copy 1.0 GiB' in text
    run = make_run(unknown={'model bytes': 'the optimizer is unusual'})
    assert 'static part unknown: the optimizer is unusual' in render(run=run)


def test_the_slowest_rank_is_judged_and_named():
    text = render_of(*make_ranks([0.006, 0.005, 0.006, 0.052], by_hook=HOOKS))
    assert '  verdict    Rank 3: Data-bound: 17 % of an iteration' in text
    assert 'per iter.  rank 0 of 4' in text
    lines = text.splitlines()
    table = lines.index(
        '             rank data wait  start-up     hooks     saves    in all      step'
        '  per iteration'
    )
    assert lines[table + 1] == (
        '                3   52.0 ms    0.0 ms    0.0 ms    0.0 ms   52.0 ms   0.248 s'
        '  slowest'
    )
    assert lines[table + 2] == (
        '                1    5.0 ms    0.0 ms    0.0 ms    0.0 ms    5.0 ms   0.295 s'
        '  fastest of 4'
    )
    assert (
        '4 cards (1680 samples): utilisation 62 % (rank 0) to 77 %' in lines[table + 3]
    )


def test_ranks_alike_leave_the_verdict_with_the_first():
    text = render_of(*make_ranks([0.05, 0.05]))
    assert '  verdict    Data-bound, too few workers: 17 %' in text
    assert 'No rank holds the others up' in text
    assert 'slowest' not in text.split('  ranks ')[1]


def test_ranks_that_still_write_are_said_to():
    ranks = make_ranks([0.006, 0.052])
    ranks[1] = replace(ranks[1], intervals=ranks[1].intervals[:-1], end=None)
    text = unwrapped(render_of(*ranks))
    assert 'notes Ranks are compared up to iteration 140 of 160: the files of' in text


def test_pauses_and_replays_are_not_passed_off_as_workers_starting():
    def remark(**fields: Any) -> str:
        evidence = make_evidence(run=make_run(loop='iter', **fields), first_waits=1)
        replayed_s = 8.0 if fields else 0.0
        starting = {**evidence.end.ledger_s, 'loop': 8.0, 'resume': replayed_s}
        end = replace(evidence.end, ledger_s=starting)
        return unwrapped(render_of(replace(evidence, end=end)))

    assert 'MMEngine pauses 2 s before each start' in remark()
    assert 'drawn again' not in remark()
    assert '600 batches of before are drawn again' in remark(start_iteration=600)


def test_a_loader_that_is_none_of_pytorch_is_one_sentence():
    why = 'batches come from a Queue, which is no DataLoader of PyTorch'
    run = make_run(loader=LoaderSettings(), unknown={'loader workers': why})
    text = render(run=run, process_cpu_s=4.0)
    assert f'loader     unknown: {why}' in text
    assert 'None' not in text


def test_workers_beyond_the_cores_make_no_more_than_these_allow():
    host = HostLimits(logical_cpus=2, usable_cores=2.0)
    run = make_run(
        loader=LoaderSettings(
            num_workers=256,
            persistent_workers=False,
            prefetch_factor=2,
            pin_memory=False,
            batch_size=2,
        ),
        host=host,
    )
    crowd = make_inside_workers(0.09, count=256)
    crowd = replace(crowd, batch_cpu=steady(0.006, 20))
    text = unwrapped(render(run=run, workers=crowd, process_cpu_s=4.0))
    assert (
        '256 worker(s) make one every 3.0 ms at best, on 2 usable cores, step and hooks'
    ) in text


def test_saves_within_the_figures_of_cpu_are_named():
    summary = Run(make_evidence(process_cpu_s=4.0))
    summary = summary.altered(cpu_aside_pct=5.4)
    judged = diagnose_run(summary)
    text = unwrapped(render_training_summary(summary, judged))
    assert '(5.4 % of the time saves and validations, which are in it)' in text
