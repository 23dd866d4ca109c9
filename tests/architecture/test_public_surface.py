"""Everything users lean on, as a frozen list: a change here needs a changelog line."""

from __future__ import annotations

import dataclasses
import inspect

import click

import mmgpu_hooks
from mmgpu_hooks import schema
from mmgpu_hooks.commands.main import COMMANDS, mmgpu
from mmgpu_hooks.judge.causes import CAUSES
from mmgpu_hooks.judge.rules import RULES
from mmgpu_hooks.judge.verdict import VERDICTS
from mmgpu_hooks.schema.lines import KINDS
from mmgpu_hooks.schema.parts import PARTS


def fields_of(name: str) -> list[str]:
    return [field.name for field in dataclasses.fields(getattr(schema, name))]


def test_package():
    assert mmgpu_hooks.__all__ == ['GPUEfficiencyHook', '__version__']


def test_hook():
    hook = mmgpu_hooks.GPUEfficiencyHook
    assert str(inspect.signature(hook)) == (
        "(interval: 'int | None' = None, gpu_sample_period_s: 'float' = 0.2, "
        "summary: 'bool' = True, worker_nice: 'int | None' = None, "
        "stuck_after_s: 'float' = 60, scalars: 'str' = 'main') -> 'None'"
    )
    assert hook.priority == 55


def test_scalars():
    from mmgpu_hooks.hooks.scalars import MAIN, SCALARS

    assert list(SCALARS) == [
        'data_wait_s',
        'step_s',
        'iter_s',
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
    assert [name for name in SCALARS if name not in MAIN] == [
        'step_s',
        'gpu_idle_pct',
        'gpu_mem_reserved_mib',
        'process_cpu_cores',
        'system_cpu_pct',
    ]
    assert len(MAIN) == 8
    documented = inspect.getdoc(mmgpu_hooks.GPUEfficiencyHook) or ''
    assert all(f'``{name}``' in documented for name in SCALARS)
    # MMEngine would average or reformat these
    assert not [n for n in SCALARS if 'time' in n or 'loss' in n or n.endswith('lr')]


REWRITING = [
    '--check',
    '--dry-run',
    '--format',
    '--output',
    'config',
]


def test_rewriting_from_python():
    from mmgpu_hooks.config import rewrite
    from mmgpu_hooks.config.outcome import RewriteOutcome

    assert list(inspect.signature(rewrite.rewrite_config).parameters) == [
        'source',
        'settings',
        'output',
        'in_place',
        'dry_run',
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
    ctx = click.Context(mmgpu)
    flags = {
        name: sorted(
            word for one in mmgpu.get_command(ctx, name).params for word in one.opts
        )
        for name in COMMANDS
    }
    assert flags == {
        'recommend': [
            '--allow-batch-size',
            '--check',
            '--config',
            '--details',
            '--dry-run',
            '--format',
            '--in-place',
            '--output',
            'run_folders',
        ],
        'why': ['--format', '--log', '--watch', 'work_dir'],
        'report': [
            '--format',
            '--output',
            '--plots',
            '-o',
            'run_folders',
        ],
        'predict': [
            '--batch-size',
            '--format',
            '--num-workers',
            '--prefetch-factor',
            'run_folders',
        ],
        'set': sorted([*REWRITING, '--in-place', '--unset', 'settings']),
        'enable': REWRITING,
        'disable': REWRITING,
        'estimate-memory': [
            '--amp',
            '--batch-size',
            '--format',
            '--image-size',
            '--optimizer',
            '--run',
            'config',
        ],
        'pick-gpu': [
            '--count',
            '--format',
            '--leases',
            '--min-free',
            '--reserve',
            '--wait',
            '-n',
            'program',
        ],
        'save-bench': [
            '--dry-run',
            '--format',
            '--fresh',
            '--num-workers',
            '--saves',
            '--time-limit',
            '--work-dir',
            '--worker-nice',
            'config',
        ],
        'sweep': [
            '--amp',
            '--batch-size',
            '--dry-run',
            '--format',
            '--fresh',
            '--gpus',
            '--num-workers',
            '--pin-memory',
            '--prefetch-factor',
            '--saves',
            '--seconds',
            '--time-limit',
            '--work-dir',
            'config',
        ],
        'explain': ['code'],
        'demo': [
            '--images',
            '--work-dir',
            'config',
        ],
        'compare': [
            '--format',
            '--max-regression',
            'after',
            'before',
        ],
        'verify': [
            '--config',
            '--format',
            '--fresh',
            '--max-minutes',
            '--work-dir',
            'runs',
        ],
    }


def test_rules():

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
        'MG113',
        'MG114',
        'MG201',
        'MG202',
        'MG203',
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


def test_causes():
    assert list(CAUSES) == [
        'oom_host',
        'oom_cgroup',
        'oom_gpu',
        'shm_full',
        'open_files',
        'worker_killed',
        'worker_stuck',
        'worker_deadlock',
        'sample_raised',
        'rank_lost',
        'rank_waits',
        'gpu_lost',
        'storage_stalled',
        'disk_full',
        'interrupted',
        'preempted',
        'nan_loss',
        'config_error',
        'resume_refused',
        'unknown',
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
        'validation',
        'unknown',
        'source_off',
        'stuck',
        'end',
    ]
    assert PARTS == (
        'data_wait',
        'step',
        'hooks',
        'checkpoint_save',
        'validation',
        'startup',
        'resume',
        'teardown',
        'loop',
        'other',
    )
    assert schema.SCHEMA_VERSION == 1


RECORD_FIELDS = {
    'Why': [
        'state',
        'cause',
        'certainty',
        'sentence',
        'proof',
        'do',
        'rank',
        'sample',
    ],
    'Proof': ['source', 'line', 'text'],
    'ValidationOutlook': [
        'sentence',
        'validations',
        'loop_s',
        'gain_s',
        'gain_low_s',
        'gain_high_s',
        'run_gain_pct',
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
        'hook',
        'save_interval',
        'ranks',
        'is_whole',
    ],
    'SaveSetting': ['num_workers', 'worker_nice'],
    'SavePlan': ['setting', 'saves', 'interval', 'iterations'],
    'SaveBenchRow': [
        'setting',
        'status',
        'error',
        'saves',
        'save_s',
        'cpu_s',
        'run_delay_s',
        'blocked_s',
        'bytes',
        'workers_busy',
        'data_wait_s',
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
        'asked',
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
        'data_wait_s',
        'images_per_s',
        'gpu_util_pct',
        'gpu_zero_pct',
        'memory_peak_bytes',
        'memory_source',
        'batches_per_epoch',
        'cpu_cores',
        'external_cpu_cores',
        'save_s',
        'is_loss_finite',
        'most_workers',
        'most_workers_reason',
        'folder',
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
    'Trial': [
        'name',
        'status',
        'error',
        'seconds',
        'iterations',
        'folder',
        'figures',
        'is_reused',
    ],
}


def test_record_fields():
    assert {name: fields_of(name) for name in RECORD_FIELDS} == RECORD_FIELDS
