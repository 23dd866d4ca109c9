"""The records that every room passes on: frozen, and the unit is in each name.

``None`` always means *unknown* and never zero; where a figure can be unknown
for several reasons, the record carries the reason beside it.
"""

from mmgpu_hooks.records.judged import (
    Change,
    Diagnosis,
    Finding,
    Recommendation,
    Verdict,
)
from mmgpu_hooks.records.measured import (
    DurationStats,
    GpuDevice,
    GpuWindow,
    HostLimits,
    LoaderSettings,
    SchedStat,
    WorkersWindow,
)
from mmgpu_hooks.records.run import (
    SCHEMA_VERSION,
    EndRecord,
    IntervalRecord,
    PlainRun,
    RunEvidence,
    RunRecord,
    RunSummary,
    SourceOffRecord,
)

__all__ = [
    'SCHEMA_VERSION',
    'Change',
    'Diagnosis',
    'DurationStats',
    'EndRecord',
    'Finding',
    'GpuDevice',
    'GpuWindow',
    'HostLimits',
    'IntervalRecord',
    'LoaderSettings',
    'PlainRun',
    'Recommendation',
    'RunEvidence',
    'RunRecord',
    'RunSummary',
    'SchedStat',
    'SourceOffRecord',
    'Verdict',
    'WorkersWindow',
]
