"""The records that every room passes on: frozen, and the unit is in each name.

``None`` always means *unknown* and never zero; where a figure can be unknown
for several reasons, the record carries the reason beside it.
"""

from mmgpu_hooks.records.device import (
    CardState,
    CardWindow,
    CudaMemoryWindow,
    GpuDevice,
    GpuWindow,
    ModelBytesRecord,
)
from mmgpu_hooks.records.estimated import (
    ActivationFit,
    ActivationPoint,
    MeasuredMemory,
    MemoryEstimate,
    ModuleActivations,
    StaticBytes,
)
from mmgpu_hooks.records.judged import (
    Change,
    Diagnosis,
    Finding,
    Recommendation,
    Verdict,
)
from mmgpu_hooks.records.loading import SlowSample, TransformCost, WorkersWindow
from mmgpu_hooks.records.measured import (
    DurationStats,
    HostLimits,
    HostWindow,
    LoaderSettings,
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
    UnknownRecord,
)
from mmgpu_hooks.records.saving import (
    SAVE_PHASES,
    SaveAftermathRecord,
    SavePhase,
    SaveRecord,
)
from mmgpu_hooks.records.summed import (
    CardImbalance,
    CudaMemorySummary,
    HookCost,
    HostSummary,
    LoaderSummary,
    RankRow,
    RanksSummary,
    TransformSummary,
)

__all__ = [
    'SAVE_PHASES',
    'SCHEMA_VERSION',
    'ActivationFit',
    'ActivationPoint',
    'CardImbalance',
    'CardState',
    'CardWindow',
    'Change',
    'CudaMemorySummary',
    'CudaMemoryWindow',
    'Diagnosis',
    'DurationStats',
    'EndRecord',
    'Finding',
    'GpuDevice',
    'GpuWindow',
    'HookCost',
    'HostLimits',
    'HostSummary',
    'HostWindow',
    'IntervalRecord',
    'LoaderSettings',
    'LoaderSummary',
    'MeasuredMemory',
    'MemoryEstimate',
    'ModelBytesRecord',
    'ModuleActivations',
    'PlainRun',
    'RankRow',
    'RanksSummary',
    'Recommendation',
    'RunEvidence',
    'RunRecord',
    'RunSummary',
    'SaveAftermathRecord',
    'SavePhase',
    'SaveRecord',
    'SlowSample',
    'SourceOffRecord',
    'StaticBytes',
    'TransformCost',
    'TransformSummary',
    'UnknownRecord',
    'Verdict',
    'WorkersWindow',
]
