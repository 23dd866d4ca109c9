"""Everything users lean on, as a frozen list: a change here needs a changelog line."""

from __future__ import annotations

import argparse
import dataclasses
import inspect

import mmgpu_hooks
from mmgpu_hooks import records
from mmgpu_hooks.cli.main import build_parser
from mmgpu_hooks.diagnosis import run_diagnosis
from mmgpu_hooks.diagnosis.rule import RULES
from mmgpu_hooks.diagnosis.verdict import VERDICTS
from mmgpu_hooks.evidence.codec import KINDS
from mmgpu_hooks.evidence.ledger_parts import PARTS


def fields_of(name: str) -> list[str]:
    return [field.name for field in dataclasses.fields(getattr(records, name))]


def test_package():
    assert mmgpu_hooks.__all__ == ['GPUEfficiencyHook', '__version__']


def test_hook():
    hook = mmgpu_hooks.GPUEfficiencyHook
    assert str(inspect.signature(hook)) == (
        "(interval: 'int | None' = None, gpu_sample_period_s: 'float' = 0.2, "
        "summary: 'bool' = True, worker_nice: 'int | None' = None) -> 'None'"
    )
    assert hook.priority == 55


def test_scalars():
    from mmgpu_hooks.hooks.scalars import SCALARS

    assert list(SCALARS) == [
        'data_wait_s',
        'data_wait_p95_s',
        'step_s',
        'iter_s',
        'iter_p95_s',
        'data_wait_pct',
        'images_per_s',
        'gpu_util_pct',
        'gpu_zero_pct',
        'gpu_idle_pct',
        'gpu_mem_peak_mib',
        'gpu_mem_reserved_mib',
        'process_cpu_cores',
        'system_cpu_pct',
        'save_s',
    ]
    documented = inspect.getdoc(mmgpu_hooks.GPUEfficiencyHook) or ''
    assert all(f'``{name}``' in documented for name in SCALARS)
    # MMEngine would average or reformat these
    assert not [n for n in SCALARS if 'time' in n or 'loss' in n or n.endswith('lr')]


REWRITING = [
    '--check',
    '--dry-run',
    '--edit-base',
    '--format',
    '--help',
    '--no-load',
    '--output',
    '--overlay',
    '-h',
    'config',
]


def test_rewriting_from_python():
    from mmgpu_hooks.configfile import rewrite
    from mmgpu_hooks.configfile.outcome import RewriteOutcome

    assert list(inspect.signature(rewrite.rewrite_config).parameters) == [
        'source',
        'settings',
        'output',
        'in_place',
        'dry_run',
        'overlay',
        'edit_base',
        'load',
        'suffix',
    ]
    assert [field.name for field in dataclasses.fields(RewriteOutcome)] == [
        'status',
        'source',
        'target',
        'text',
        'diff',
        'reason',
        'backup',
        'changes',
        'notes',
        'cfg_options',
        'proven',
    ]


def test_commands_and_flags():
    commands = next(
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    flags = {
        name: sorted(
            option
            for action in parser._actions
            for option in action.option_strings or [action.dest]
        )
        for name, parser in commands.choices.items()
    }
    assert flags == {
        'recommend': [
            '--allow-batch-size',
            '--check',
            '--config',
            '--dry-run',
            '--edit-base',
            '--format',
            '--help',
            '--in-place',
            '--no-load',
            '--output',
            '--overlay',
            '-h',
            'run_folders',
        ],
        'report': [
            '--format',
            '--help',
            '--output',
            '--plots',
            '-h',
            '-o',
            'run_folders',
        ],
        'predict': [
            '--batch-size',
            '--format',
            '--help',
            '--num-workers',
            '--prefetch-factor',
            '-h',
            'run_folders',
        ],
        'set': sorted([*REWRITING, '--in-place', '--unset', 'settings']),
        'enable': REWRITING,
        'disable': REWRITING,
        'estimate-memory': [
            '--amp',
            '--batch-size',
            '--format',
            '--help',
            '--image-size',
            '--optimizer',
            '--run',
            '-h',
            'config',
        ],
        'pick-gpu': [
            '--count',
            '--exclude',
            '--format',
            '--help',
            '--leases',
            '--min-free',
            '--reserve',
            '--wait',
            '-h',
            '-n',
            'run_command',
        ],
        'save-bench': [
            '--dry-run',
            '--format',
            '--help',
            '--iterations-between',
            '--num-workers',
            '--plot',
            '--saves',
            '--time-limit',
            '--work-dir',
            '--worker-nice',
            '-h',
            'config',
        ],
        'sweep': [
            '--amp',
            '--batch-size',
            '--dry-run',
            '--format',
            '--fresh',
            '--gpus',
            '--help',
            '--num-workers',
            '--pin-memory',
            '--plot-format',
            '--plots',
            '--prefetch',
            '--saves',
            '--seconds',
            '--seed',
            '--time-limit',
            '--work-dir',
            '-h',
            'config',
        ],
        'explain': ['--help', '-h', 'code'],
        'demo': [
            '--data-root',
            '--help',
            '--images',
            '--size',
            '--work-dir',
            '-h',
            'config',
        ],
        'compare': [
            '--format',
            '--help',
            '--max-regression',
            '-h',
            'after',
            'before',
        ],
        'verify': [
            '--config',
            '--format',
            '--help',
            '--max-minutes',
            '--one-at-a-time',
            '--work-dir',
            '-h',
            'runs',
        ],
    }


def test_rules():
    assert run_diagnosis.RULES is RULES
    assert list(RULES) == [
        'MG101',
        'MG102',
        'MG103',
        'MG104',
        'MG105',
        'MG106',
        'MG107',
        'MG108',
        'MG109',
        'MG110',
        'MG111',
        'MG112',
        'MG201',
        'MG202',
        'MG301',
        'MG302',
        'MG303',
        'MG304',
        'MG305',
        'MG306',
        'MG307',
        'MG308',
        'MG309',
        'MG310',
        'MG311',
    ]


def test_verdicts():
    assert list(VERDICTS) == [
        'not_enough_evidence',
        'data_bound',
        'data_bound_workers',
        'data_bound_cpu',
        'data_bound_storage',
        'data_bound_order',
        'affinity_collapsed',
        'quota_throttled',
        'cpu_oversubscribed',
        'startup_bound',
        'validation_bound',
        'save_bound',
        'hook_bound',
        'compute_bound',
    ]


def test_evidence():
    assert list(KINDS) == [
        'run',
        'interval',
        'model_bytes',
        'save',
        'save_aftermath',
        'unknown',
        'source_off',
        'end',
    ]
    assert PARTS == (
        'data_wait',
        'step',
        'hooks',
        'checkpoint_save',
        'validation',
        'worker_startup',
        'other',
    )
    assert records.SCHEMA_VERSION == 1


RECORD_FIELDS = {
    'DurationStats': [
        'count',
        'total_s',
        'mean_s',
        'p50_s',
        'p95_s',
        'max_s',
    ],
    'LoaderSettings': [
        'num_workers',
        'persistent_workers',
        'prefetch_factor',
        'pin_memory',
        'batch_size',
        'batches_per_epoch',
        'dataset_length',
        'start_method',
    ],
    'HostLimits': [
        'logical_cpus',
        'affinity_cpus',
        'cgroup_cpu_cores',
        'slurm_cpus',
        'ranks_on_host',
        'usable_cores',
        'ram_total_bytes',
        'ram_available_bytes',
        'cgroup_memory_bytes',
        'shm_total_bytes',
        'shm_free_bytes',
        'open_files_soft',
    ],
    'HostWindow': [
        'cpu_pressure_pct',
        'io_pressure_pct',
        'memory_pressure_pct',
        'throttled_s',
        'swap_in_bytes',
        'swap_out_bytes',
        'ram_available_bytes',
        'swap_used_bytes',
        'shm_free_bytes',
        'open_files',
    ],
    'GpuDevice': [
        'name',
        'uuid',
        'memory_total_bytes',
        'driver_version',
    ],
    'GpuWindow': [
        'samples',
        'util_pct',
        'zero_pct',
        'util_std_pct',
        'mem_used_bytes',
        'source',
        'sm_clock_mhz',
        'mem_clock_mhz',
        'temperature_c',
        'power_w',
        'throttled_pct',
        'throttle_reasons_pct',
        'own_util_pct',
        'others_util_pct',
        'others_mem_bytes',
        'sm_active_pct',
        'sm_occupancy_pct',
        'tensor_active_pct',
        'dram_active_pct',
        'pcie_rx_bytes_per_s',
        'pcie_tx_bytes_per_s',
        'sampled_s',
    ],
    'CardWindow': [
        'index',
        'samples',
        'util_pct',
        'zero_pct',
        'mem_used_bytes',
        'sm_clock_mhz',
        'sampled_s',
    ],
    'CudaMemoryWindow': [
        'allocated_bytes',
        'retries',
        'ooms',
        'inactive_bytes',
    ],
    'ModelBytesRecord': [
        'iteration',
        'parameters',
        'parameter_bytes',
        'trainable_bytes',
        'gradient_bytes',
        'optimizer_state_bytes',
        'buffer_bytes',
        'ema_bytes',
    ],
    'TransformCost': [
        'calls',
        'total_s',
    ],
    'SlowSample': [
        'seconds',
        'index',
        'image',
    ],
    'WorkersWindow': [
        'count',
        'window_s',
        'iterations',
        'cpu_s',
        'run_delay_s',
        'fresh',
        'source',
        'blocked_s',
        'occupancy',
        'occupancy_std_s',
        'batch_cpu',
        'worker_batches',
        'worker_cpu_s',
        'ready_mean',
        'ready_zero_pct',
        'asks',
        'out_of_order',
        'affinity_cpus',
        'pss_bytes',
        'transforms',
        'timed_samples',
        'slowest',
    ],
    'RunRecord': [
        'run_id',
        'started_unix_s',
        'rank',
        'world_size',
        'work_dir',
        'config_path',
        'config_copy',
        'loop',
        'max_epochs',
        'max_iters',
        'start_iteration',
        'interval_iterations',
        'accumulative_counts',
        'optim_wrapper',
        'device',
        'loader',
        'worker_nice',
        'host',
        'gpu',
        'versions',
        'unknown',
        'schema',
    ],
    'IntervalRecord': [
        'iteration',
        'epoch',
        'iterations',
        'elapsed_s',
        'duration_s',
        'data_wait',
        'step',
        'iter',
        'ledger_s',
        'hooks_s',
        'data_wait_cpu_s',
        'first_waits',
        'first_wait_s',
        'images',
        'batch_bytes',
        'batch_tensors',
        'saves',
        'process_rss_bytes',
        'process_cpu_s',
        'process_run_delay_s',
        'system_cpu_pct',
        'largest_batch_pixels',
        'most_boxes',
        'host',
        'workers',
        'gpu',
        'gpu_idle_pct',
        'gpu_idle_iterations',
        'cards',
        'gpu_mem_peak_bytes',
        'gpu_mem_reserved_bytes',
        'cuda_memory',
        'wall_unix_s',
    ],
    'SavePhase': [
        'wall_s',
        'cpu_s',
        'run_delay_s',
        'blocked_s',
    ],
    'SaveRecord': [
        'iteration',
        'epoch',
        'wall_s',
        'occasion',
        'name',
        'backend',
        'is_remote',
        'phases',
        'cpu_s',
        'run_delay_s',
        'blocked_s',
        'bytes',
        'optimizer_bytes',
        'message_hub_bytes',
        'held_bytes',
        'workers',
        'workers_busy',
        'workers_cpu_s',
        'strangers_cpu_s',
        'cpu_pressure_pct',
        'io_pressure_pct',
        'memory_pressure_pct',
        'dirty_bytes',
        'writeback_bytes',
        'major_faults',
        'swap_in_bytes',
        'swap_out_bytes',
        'ready_before',
        'ready_after',
        'error',
        'unknown',
    ],
    'SaveAftermathRecord': [
        'iteration',
        'iterations',
        'waits_s',
        'usual_wait_s',
    ],
    'SourceOffRecord': [
        'source',
        'reason',
        'iteration',
    ],
    'UnknownRecord': [
        'source',
        'reason',
        'iteration',
    ],
    'EndRecord': [
        'status',
        'iterations',
        'duration_s',
        'ledger_s',
        'hooks_s',
        'saves',
        'error',
    ],
    'Estimate': ['value', 'low', 'high', 'count'],
    'FigureComparison': ['name', 'before', 'after', 'difference', 'ratio'],
    'SettingComparison': ['name', 'before', 'after'],
    'RunComparison': ['figures', 'settings', 'obstacles', 'notes'],
    'Verification': [
        'gain',
        'before_s',
        'after_s',
        'before_start_s',
        'after_start_s',
        'pairs',
        'iterations',
        'seconds',
        'ending',
        'external_cpu_cores',
        'predicted_gain',
        'notes',
    ],
    'TrialSpec': [
        'config',
        'folder',
        'settings',
        'iterations',
        'seconds',
        'seed',
        'interval',
        'saves',
        'save_interval',
        'evidence',
        'hook',
        'ranks',
    ],
    'SaveSetting': ['num_workers', 'worker_nice'],
    'SavePlan': ['setting', 'saves', 'interval', 'iterations'],
    'SaveBenchRow': [
        'setting',
        'status',
        'error',
        'interval',
        'iterations',
        'seconds',
        'saves',
        'save_s',
        'cpu_s',
        'run_delay_s',
        'blocked_s',
        'bytes',
        'workers_busy',
        'data_wait_s',
        'iter_s',
        'strangers_cores',
        'slow',
        'cause',
        'gross_s',
        'net_s',
        'chance',
        'is_harmful',
        'remark',
    ],
    'SaveBench': [
        'rows',
        'reference',
        'harmful_workers',
        'is_told',
        'is_interrupted',
        'seconds',
        'order',
    ],
    'SweepSetting': [
        'num_workers',
        'batch_size',
        'prefetch_factor',
        'pin_memory',
        'amp',
    ],
    'SweepRow': [
        'setting',
        'status',
        'error',
        'seconds',
        'iterations',
        'iter_s',
        'is_settled',
        'data_wait_s',
        'images_per_s',
        'gpu_util_pct',
        'gpu_zero_pct',
        'gpu_swing_pct',
        'memory_peak_bytes',
        'memory_source',
        'static_bytes',
        'gradient_bytes',
        'card_bytes',
        'card_beside_bytes',
        'largest_batch_pixels',
        'batches_per_epoch',
        'cpu_cores',
        'external_cpu_cores',
        'saves',
        'save_s',
        'is_loss_finite',
        'most_workers',
        'most_workers_reason',
        'evidence',
        'warm_up',
        'predicted',
        'unpredicted',
        'is_calibration',
        'is_reused',
    ],
    'Sweep': [
        'rows',
        'asked',
        'best',
        'seed',
        'seconds',
        'is_interrupted',
        'ranks',
        'notes',
    ],
    'TrialResult': [
        'settings',
        'status',
        'folder',
        'seconds',
        'iterations',
        'error',
        'summary',
    ],
}


def test_record_fields():
    assert {name: fields_of(name) for name in RECORD_FIELDS} == RECORD_FIELDS
