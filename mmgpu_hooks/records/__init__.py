"""The records that every room passes on: frozen, and the unit is in each name.

``None`` always means *unknown* and never zero; where a figure can be unknown
for several reasons, the record carries the reason beside it.
"""

from mmgpu_hooks.records.benched import (
    SaveBench,
    SaveBenchRow,
    SavePlan,
    SaveSetting,
)
from mmgpu_hooks.records.compared import (
    Estimate,
    FigureComparison,
    RunComparison,
    SettingComparison,
    Verification,
)
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
    SAVE_CAUSES,
    Change,
    Diagnosis,
    Finding,
    Recommendation,
    SaveCure,
    SaveJudgement,
    Verdict,
)
from mmgpu_hooks.records.loading import SlowSample, TransformCost, WorkersWindow
from mmgpu_hooks.records.measured import (
    DurationStats,
    HostLimits,
    HostWindow,
    LoaderSettings,
)
from mmgpu_hooks.records.predicted import (
    BatchLine,
    Cost,
    JobPlan,
    JobPrediction,
    LoaderWorkload,
    NoPrediction,
    Prediction,
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
from mmgpu_hooks.records.swept import (
    MEMORY_SOURCES,
    Sweep,
    SweepRow,
    SweepSetting,
)
from mmgpu_hooks.records.trial import TRIAL_STATUSES, TrialResult, TrialSpec

__all__ = [
    'MEMORY_SOURCES',
    'SAVE_CAUSES',
    'SAVE_PHASES',
    'SCHEMA_VERSION',
    'TRIAL_STATUSES',
    'ActivationFit',
    'ActivationPoint',
    'BatchLine',
    'CardImbalance',
    'CardState',
    'CardWindow',
    'Change',
    'Cost',
    'CudaMemorySummary',
    'CudaMemoryWindow',
    'Diagnosis',
    'DurationStats',
    'EndRecord',
    'Estimate',
    'FigureComparison',
    'Finding',
    'GpuDevice',
    'GpuWindow',
    'HookCost',
    'HostLimits',
    'HostSummary',
    'HostWindow',
    'IntervalRecord',
    'JobPlan',
    'JobPrediction',
    'LoaderSettings',
    'LoaderSummary',
    'LoaderWorkload',
    'MeasuredMemory',
    'MemoryEstimate',
    'ModelBytesRecord',
    'ModuleActivations',
    'NoPrediction',
    'PlainRun',
    'Prediction',
    'RankRow',
    'RanksSummary',
    'Recommendation',
    'RunComparison',
    'RunEvidence',
    'RunRecord',
    'RunSummary',
    'SaveAftermathRecord',
    'SaveBench',
    'SaveBenchRow',
    'SaveCure',
    'SaveJudgement',
    'SavePhase',
    'SavePlan',
    'SaveRecord',
    'SaveSetting',
    'SettingComparison',
    'SlowSample',
    'SourceOffRecord',
    'StaticBytes',
    'Sweep',
    'SweepRow',
    'SweepSetting',
    'TransformCost',
    'TransformSummary',
    'TrialResult',
    'TrialSpec',
    'UnknownRecord',
    'Verdict',
    'Verification',
    'WorkersWindow',
]
