"""The planted cases: runs whose every figure is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from fakes.compared_runs import make_noisy_run
from fakes.pooled import make_pooled
from fakes.replaced import replace
from fakes.runs import (
    GIB,
    add_to_end,
    make_evidence,
    make_gpu_fields,
    make_gpu_run,
    make_host_window,
    make_inside_workers,
    make_interval,
    make_loader,
    make_model_bytes,
    make_ranks,
    make_run,
    make_workers,
    render_evidence,
    steady,
)
from fakes.saves import (
    HOST,
    LOADER,
    MIB,
    make_aftermath,
    make_calm,
    make_contended,
    make_save,
    walls_of,
)
from fakes.validations import make_validation
from golden.facts import PLACEHOLDER
from mmgpu_hooks.schema import (
    EndRecord,
    GpuWindow,
    HostLimits,
    RunEvidence,
    RunRecord,
    SaveRecord,
    SourceOffRecord,
    TransformCost,
    WorkersWindow,
)
from mmgpu_hooks.schema.lines import encode_line

Text = Union[str, bytes]

CONFIG = """\
# my experiment
from_scratch = False
train_dataloader = dict(
    batch_size=4,
    num_workers=0,  # debugging
    persistent_workers=False,
    dataset=dict(type='ToyDataset'),
)
"""
BASE = "train_dataloader = dict(batch_size=4, num_workers=0, dataset=dict(type='A'))\n"
LEAF = "_base_ = './base.py'\nwork_dir = 'somewhere'\n"


@dataclass(frozen=True)
class Planted:
    """The files of a case, and what ``recommend`` is asked for."""

    files: Mapping[str, Text]
    flags: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Leave the files there."""
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())


def plant(
    *ranks: RunEvidence | Text, flags: tuple[str, ...] = (), **configs: str
) -> Planted:
    """A run of one or several ranks, and configs by their names without ``.py``."""
    files: dict[str, Text] = {f'{name}.py': text for name, text in configs.items()}
    for number, rank in enumerate(ranks):
        name = f'_rank{number}' if number else ''
        text = with_path(rank) if isinstance(rank, RunEvidence) else rank
        files[f'run/gpu_efficiency{name}.jsonl'] = text
    return Planted(files, flags)


def with_path(evidence: RunEvidence) -> str:
    """Its lines; the run names the config of the case."""
    run = replace(evidence.run, config_path=f'{PLACEHOLDER}/config.py')
    return render_evidence(replace(evidence, run=run))


def load_by(
    num_workers: int, persistent: bool = True, *, prefetch: int = 2, **run: Any
) -> RunRecord:
    """A run with these workers."""
    loader = make_loader(
        num_workers,
        persistent_workers=persistent,
        prefetch_factor=prefetch if num_workers else None,
    )
    return make_run(loader=loader, **run)


def on_cores(cores: int, **fields: Any) -> HostLimits:
    """A host of its own for the run."""
    limits: dict[str, Any] = {
        'ram_total_bytes': 64 * GIB,
        'ram_available_bytes': 48 * GIB,
        'shm_total_bytes': 32 * GIB,
        'shm_free_bytes': 32 * GIB,
        'open_files_soft': 65536,
    }
    return HostLimits(
        logical_cpus=cores,
        affinity_cpus=cores,
        usable_cores=float(cores),
        **{**limits, **fields},
    )


def blocked(occupancy_s: float, *, cpu_s: float = 0.02, **fields: Any) -> WorkersWindow:
    """Workers that mostly wait."""
    made = make_inside_workers(occupancy_s, **fields)
    batches = made.iterations
    return replace(
        made,
        cpu_s=cpu_s * batches,
        blocked_s=(occupancy_s - cpu_s) * batches,
        batch_cpu=steady(cpu_s, batches),
    )


def vary(data_wait_s: float, step_s: float, workers: WorkersWindow) -> RunEvidence:
    """A noisy run without an end, whose intervals all have these workers."""
    evidence = make_noisy_run(3, data_wait_s=data_wait_s, step_s=step_s)
    intervals = (
        replace(one, workers=workers, process_cpu_s=BUSY['process_cpu_s'])
        for one in evidence.intervals
    )
    return replace(evidence, intervals=tuple(intervals))


def spend(evidence: RunEvidence, **seconds: float) -> RunEvidence:
    """The run with more seconds in parts of its ledger, and four saves."""
    evidence = add_to_end(evidence, **seconds)
    assert evidence.end is not None
    return replace(evidence, end=replace(evidence.end, saves=4))


def save(*saves: SaveRecord, usual_wait_s: float | None = 0.05) -> RunEvidence:
    """A compute-bound run of 40 s on two cores beside its saves."""
    run = make_run(host=HOST, loader=LOADER)
    evidence = make_evidence(run=run, data_wait_s=0.0, step_s=0.25)
    evidence = add_to_end(evidence, checkpoint_save=walls_of(saves))
    assert evidence.end is not None
    return replace(
        evidence,
        end=replace(evidence.end, saves=len(saves)),
        save_records=saves,
        save_aftermaths=tuple(
            make_aftermath(one.iteration, usual_wait_s=usual_wait_s) for one in saves
        ),
    )


def add_odd_lines(evidence: RunEvidence) -> str:
    """The run's lines among others that a newer version, a bug or a disk left."""
    run, *rest = with_path(evidence).splitlines(keepends=True)
    odd = ['garbage\n', '{}\n', '[1, 2]\n', '\n', '{"kind":"of_tomorrow","x":1}\n']
    odd.append(rest[0].replace('"iteration":', '"of_tomorrow":[1],"iteration":', 1))
    odd.append(rest[1].replace('"step":{', '"step":[{', 1))
    return '\ufeff' + run + ''.join(odd) + ''.join(rest[1:])


BUSY = {'process_cpu_s': 4.0}
"""A core in each step of 0.2 s."""
WAITS = {'data_wait_s': 0.3, 'data_wait_cpu_s': 6.0, 'process_cpu_s': 10.0}
KEEPS_UP = {'data_wait_s': 0.001, 'step_s': 0.299, **BUSY}
STARTS = {
    # each interval begins with a start of 6 s beside 19 waits of a millisecond
    'data_wait_s': 0.001,
    'first_waits': 1,
    'first_wait_s': 6.0,
    'ledger_s': {'data_wait': 0.02, 'startup': 5.999, 'step': 4.0},
    'data_wait': replace(make_interval().data_wait, total_s=6.019),
    'duration_s': 10.019,
    **BUSY,
}
GPU = make_gpu_fields()
STARVED = {'data_wait_s': 0.25, 'workers': make_inside_workers(0.9), **BUSY}
STALLS = replace(make_interval().data_wait, p95_s=0.001)
LATE = replace(
    blocked(0.4, cpu_s=0.3, std_s=0.4, asks=20, out_of_order=8),
    batch_cpu=replace(steady(0.3, 20), p95_s=0.9),
)
MOSAIC = {
    'Mosaic': TransformCost(calls=4, total_s=1.9),
    'LoadImageFromFile': TransformCost(calls=4, total_s=0.24),
    'PackDetInputs': TransformCost(calls=4, total_s=0.02),
}
SHORT_OF_MEMORY = {'memory_pressure_pct': 80.0, 'major_faults': 25_600}
STARVED_LEDGER = {'data_wait': 40.0, 'step': 32.0}
STARVED_EVIDENCE = make_evidence(run=load_by(2), **STARVED)
SLOW_RANK = make_ranks(
    [0.01, 0.01, 0.2, 0.01], workers=make_inside_workers(0.4), process_cpu_s=4.0
)

PLANTED: dict[str, Planted] = {
    # the loader
    'compute_bound': plant(
        make_evidence(run=load_by(2), workers=make_inside_workers(0.2), **KEEPS_UP)
    ),
    'waits_a_little': plant(
        make_evidence(
            4,
            run=load_by(2),
            data_wait_s=0.021,
            step_s=0.279,
            workers=make_inside_workers(0.5),
            **BUSY,
        )
    ),
    'no_workers': plant(make_evidence(run=load_by(0, False), **WAITS), config=CONFIG),
    'no_workers_in_base': plant(
        make_evidence(run=load_by(0, False), **WAITS), config=LEAF, base=BASE
    ),
    'too_few_workers': plant(STARVED_EVIDENCE),
    'too_few_workers_noisy': plant(vary(0.25, 0.2, make_inside_workers(0.9))),
    'cpu_is_the_wall': plant(
        make_evidence(
            run=load_by(2, host=on_cores(2)), workers=make_workers(0.39), **BUSY
        )
    ),
    'slow_transform': plant(
        make_evidence(
            run=load_by(2, host=on_cores(2)),
            data_wait_s=0.25,
            workers=make_inside_workers(0.9, transforms=MOSAIC),
            **BUSY,
        )
    ),
    'storage': plant(
        make_evidence(run=load_by(2), data_wait_s=0.25, workers=blocked(0.9), **BUSY)
    ),
    'storage_beyond_cores': plant(
        make_evidence(
            run=load_by(2, host=on_cores(2)),
            data_wait_s=0.25,
            workers=blocked(0.9),
            host=make_host_window(io_pressure_pct=40.0),
            **BUSY,
        ),
    ),
    'workers_start_each_epoch': plant(make_evidence(run=load_by(2, False), **STARTS)),
    'iterations_start_over': plant(
        make_evidence(run=load_by(2, loop='iter'), **STARTS)
    ),
    'more_workers_than_cores': plant(
        make_evidence(
            run=load_by(16, host=on_cores(4)),
            data_wait_s=0.01,
            workers=make_workers(0.6, count=16, run_delay_s=0.9),
            **BUSY,
        )
    ),
    'late_batches': plant(
        make_evidence(
            run=load_by(2, prefetch=1),
            data_wait_s=0.06,
            step_s=0.24,
            workers=LATE,
            **BUSY,
        )
    ),
    'rare_stalls': plant(
        make_evidence(run=load_by(2), data_wait=STALLS, workers=make_workers(0.1))
    ),
    'fetching_in_the_training_thread': plant(
        make_evidence(run=load_by(2), data_wait_cpu_s=2.0, workers=make_workers(0.1))
    ),
    'little_shared_memory': plant(
        make_evidence(
            run=load_by(0, False, host=on_cores(16, shm_free_bytes=800 * MIB)),
            batch_bytes=200 * MIB,
            data_wait_s=0.9,
            data_wait_cpu_s=18.0,
            process_cpu_s=22.0,
        )
    ),
    # who gets a core
    'other_load': plant(
        make_evidence(
            run=load_by(2), system_cpu_pct=60.0, workers=make_workers(0.1), **BUSY
        )
    ),
    'training_thread_waits_for_a_core': plant(
        make_evidence(run=load_by(2), process_run_delay_s=3.0, **KEEPS_UP)
    ),
    'confined_workers': plant(
        make_evidence(
            run=load_by(4),
            workers=make_inside_workers(1.1, count=4, affinity_cpus=1),
            **BUSY,
        )
    ),
    'quota_throttles': plant(
        make_evidence(
            run=load_by(2),
            host=make_host_window(throttled_s=1.5),
            **KEEPS_UP,
        )
    ),
    # the card
    'gpu_swings': plant(
        replace(
            make_evidence(
                run=make_gpu_run(loader=load_by(2).loader), **{**STARVED, **GPU}
            ),
            model=make_model_bytes(),
        )
    ),
    'gpu_is_busy': plant(
        make_evidence(
            run=make_gpu_run(loader=load_by(2).loader),
            **{
                **GPU,
                'gpu': GpuWindow(
                    samples=60,
                    util_pct=97.4,
                    zero_pct=0.0,
                    util_std_pct=4.1,
                    mem_used_bytes=9 * GIB,
                ),
            },
            workers=make_inside_workers(0.2),
            **KEEPS_UP,
        )
    ),
    'gpu_is_half_busy': plant(
        make_evidence(
            run=make_gpu_run(loader=load_by(2).loader),
            **{
                **GPU,
                'gpu': GpuWindow(
                    samples=60,
                    util_pct=64.5,
                    zero_pct=1.5,
                    util_std_pct=4.1,
                    mem_used_bytes=9 * GIB,
                ),
            },
            data_wait_s=0.02,
            step_s=0.28,
            workers=make_inside_workers(0.2),
            **BUSY,
        )
    ),
    'gpu_is_unknown': plant(
        make_evidence(
            run=make_gpu_run(
                unknown={'GPU': 'the NVIDIA driver was not found'}, gpu=None
            ),
            **STARVED,
        )
    ),
    'batch_size': Planted(
        {
            f'run{size}/{name}': text
            for size in (2, 4)
            for name, text in (
                ('gpu_efficiency.jsonl', with_path(make_pooled(size, day=30 - size))),
                ('config.py', CONFIG.replace('batch_size=4', f'batch_size={size}')),
            )
        }
        | {'config.py': CONFIG.replace('batch_size=4', 'batch_size=2')},
        ('--allow-batch-size',),
    ),
    # parts beside the loop
    'bound_by_hooks': plant(
        spend(make_evidence(run=load_by(2), **KEEPS_UP), hooks=9.0)
    ),
    'bound_by_saves': plant(save(*make_calm(20))),
    'bound_by_validation': plant(
        spend(make_evidence(run=load_by(2), **KEEPS_UP), validation=400.0)
    ),
    'validation_has_too_few_workers': plant(
        replace(
            spend(make_evidence(run=load_by(2), **KEEPS_UP), validation=40.0),
            validations=(make_validation(0), make_validation(1)),
        )
    ),
    # saves
    'saves_held_by_workers': plant(
        save(*(make_contended(10 * index) for index in range(1, 7)))
    ),
    'saves_held_by_workers_won_back': plant(
        save(
            *make_calm(3),
            *(make_contended(100 * index) for index in range(1, 9)),
            usual_wait_s=0.1,
        )
    ),
    'saves_held_by_others': plant(
        save(
            *make_calm(3),
            make_save(
                900, run_delay_s=1.6, workers=0, workers_cpu_s=0.0, strangers_cpu_s=3.6
            ),
        )
    ),
    'saves_held_by_storage': plant(save(*make_calm(3), make_save(900, blocked_s=9.8))),
    'saves_held_by_memory': plant(
        save(*make_calm(3), make_save(900, blocked_s=1.8, **SHORT_OF_MEMORY))
    ),
    'saves_held_by_remote_backend': plant(
        save(*make_calm(3), make_save(900, blocked_s=1.8, is_remote=True))
    ),
    'saves_held_by_histories': plant(
        save(
            *make_calm(3),
            make_save(900, cpu_s=1.8, bytes=900 * MIB, message_hub_bytes=700 * MIB),
        )
    ),
    'saves_held_by_nothing_known': plant(
        save(*make_calm(3), make_save(900, blocked_s=1.8, phases={}))
    ),
    # ranks
    'one_rank_is_slow': plant(*SLOW_RANK),
    'ranks_alike': plant(*make_ranks([0.1, 0.1005, 0.1])),
    'one_rank_is_broken': plant(*make_ranks([0.2, 0.01]), 'garbage\n'),
    # little, torn and odd
    'too_short': plant(make_evidence(2, run=load_by(2), iterations=9, **STARVED)),
    'one_interval': plant(make_evidence(1, run=load_by(2), iterations=5, **STARVED)),
    'unknown_figures': plant(
        make_evidence(
            run=load_by(2, host=HostLimits(), unknown={'CPU': 'no /proc'}),
            data_wait_s=0.25,
            data_wait_cpu_s=None,
            process_cpu_s=None,
            system_cpu_pct=None,
            process_rss_bytes=None,
            images=None,
            batch_bytes=None,
            batch_tensors=None,
        )
    ),
    'failed_with_a_source_off': plant(
        with_path(replace(STARVED_EVIDENCE, end=None)).encode()
        + encode_line(
            SourceOffRecord(source='GPU', reason='the GPU is lost', iteration=40)
        )
        + encode_line(
            EndRecord(
                status='failed',
                iterations=160,
                duration_s=72.0,
                ledger_s=STARVED_LEDGER,
                error='RuntimeError',
            )
        )
    ),
    'torn_last_line': plant(with_path(STARVED_EVIDENCE)[:-40]),
    'last_line_without_end': plant(with_path(STARVED_EVIDENCE)[:-1]),
    'bytes_that_are_no_text': plant(
        with_path(STARVED_EVIDENCE).encode() + b'\xff\xfe\x00\x9f\n'
    ),
    'odd_lines': plant(add_odd_lines(STARVED_EVIDENCE)),
    'newer_schema': plant('{"kind":"run","schema":99,"host":"of another form"}\n'),
    'two_runs_in_one_file': plant(2 * with_path(make_evidence(1))),
    'no_run': plant('garbage\n'),
    'no_bytes': plant(''),
}
