"""Tests that the public interface equals the frozen list in ``public_surface.txt``.

Run as a script, this writes ``public_surface.txt``.
"""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path

import click

import mmgpu_hooks
from mmgpu_hooks.commands.main import COMMANDS, mmgpu
from mmgpu_hooks.config import rewrite
from mmgpu_hooks.config.rewrite import RewriteOutcome
from mmgpu_hooks.judge.causes import CAUSES
from mmgpu_hooks.judge.rules import RULES
from mmgpu_hooks.judge.verdict_names import VERDICTS
from mmgpu_hooks.schema import checkup, judged, many_runs, tried
from mmgpu_hooks.schema.lines import KINDS
from mmgpu_hooks.schema.recorded import PARTS, SCHEMA_VERSION
from mmgpu_hooks.schema.values import FAST_METRIC

FROZEN = Path(__file__).with_name('public_surface.txt')

RECORDS = (
    'Why',
    'Proof',
    'ValidationOutlook',
    'TrainingEnd',
    'SavedHours',
    'Estimate',
    'FigureComparison',
    'RunComparison',
    'Verification',
    'MendedStart',
    'NextJob',
    'HostSaving',
    'HostOverhead',
    'SaveBenchRow',
    'SaveBench',
    'SweepSetting',
    'SweepRow',
    'Sweep',
    'HostPart',
    'Profile',
    'Checked',
    'Machine',
    'OpenFiles',
    'Binding',
    'Folder',
    'Cards',
    'HostCard',
    'Installed',
    'Bounds',
    'ConfigCheck',
    'LoaderPlan',
    'LostHook',
    'FirstAnswer',
    'LogFigures',
)
"""Names of the records in JSON answers, whose fields users read."""


def render() -> str:
    """Returns the public interface as text: a title per part, one item per line."""
    from mmgpu_hooks.hooks.scalars import MAIN, SCALARS

    hook = inspect.signature(mmgpu_hooks.GPUEfficiencyHook)
    context = click.Context(mmgpu)
    flags = {
        f'mmgpu {name}': sorted(
            word
            for parameter in mmgpu.get_command(context, name).params
            for word in parameter.opts
        )
        for name in COMMANDS
    }
    records = {**vars(judged), **vars(tried), **vars(checkup)}
    fields = {
        f'schema.{name}': [field.name for field in dataclasses.fields(records[name])]
        for name in RECORDS
    }
    many = (many_runs.ManyRuns, many_runs.RunTotals, many_runs.RunRow)
    fields |= {f'schema.{kind.__name__}': [*kind.__struct_fields__] for kind in many}
    parts = {
        'package': mmgpu_hooks.__all__,
        'metrics for a config': [FAST_METRIC],
        'hook': [str(parameter) for parameter in hook.parameters.values()],
        'scalars by default': [name for name in SCALARS if name in MAIN],
        "scalars with 'all'": [name for name in SCALARS if name not in MAIN],
        'rewrite_config': inspect.signature(rewrite.rewrite_config).parameters,
        'RewriteOutcome': [field.name for field in dataclasses.fields(RewriteOutcome)],
        **flags,
        'rules': RULES,
        'causes of `why`': CAUSES,
        'verdicts': VERDICTS,
        f'kinds of record, schema {SCHEMA_VERSION}': KINDS,
        'parts of the time ledger': PARTS,
        **fields,
    }
    return '\n'.join('\n    '.join([title, *parts[title]]) + '\n' for title in parts)


def test_the_public_surface_is_what_it_was():
    assert render() == FROZEN.read_text(), (
        f'a change for users: `python {Path(__file__).name}` and a line in CHANGELOG.md'
    )


def test_scalars_are_documented_and_named_as_mmengine_needs():
    from mmgpu_hooks.hooks.scalars import MAIN, SCALARS

    assert mmgpu_hooks.GPUEfficiencyHook.priority == 55
    assert len(MAIN) == 8
    documented = inspect.getdoc(mmgpu_hooks.GPUEfficiencyHook) or ''
    assert all(f'``{name}``' in documented for name in SCALARS)
    # MMEngine would average or reformat these
    assert not [n for n in SCALARS if 'time' in n or 'loss' in n or n.endswith('lr')]


if __name__ == '__main__':
    FROZEN.write_text(render())
