"""The records that every room passes on: frozen, and the unit is in each name.

``None`` always means *unknown* and never zero; where a figure can be unknown
for several reasons, the record carries the reason beside it.
"""

from mmgpu_hooks.records.batching import (
    MemoryFit,
    MemoryPoint,
    MemoryRuleRow,
    PeakPrediction,
    SpeedPoint,
)
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
    LearningRate,
    Recommendation,
    SaveCure,
    SaveJudgement,
    ValidationOutlook,
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
    Disputes,
    FittedRun,
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
    RankRow,
    RanksSummary,
)
from mmgpu_hooks.records.swept import (
    MEMORY_SOURCES,
    Sweep,
    SweepRow,
    SweepSetting,
)
from mmgpu_hooks.records.trial import TRIAL_STATUSES, TrialResult, TrialSpec
from mmgpu_hooks.records.validating import ValidationRecord

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
    'CudaMemoryWindow',
    'Diagnosis',
    'Disputes',
    'DurationStats',
    'EndRecord',
    'Estimate',
    'FigureComparison',
    'Finding',
    'FittedRun',
    'GpuDevice',
    'GpuWindow',
    'HostLimits',
    'HostWindow',
    'IntervalRecord',
    'JobPlan',
    'JobPrediction',
    'LearningRate',
    'LoaderSettings',
    'LoaderWorkload',
    'MeasuredMemory',
    'MemoryEstimate',
    'MemoryFit',
    'MemoryPoint',
    'MemoryRuleRow',
    'ModelBytesRecord',
    'ModuleActivations',
    'NoPrediction',
    'PeakPrediction',
    'PlainRun',
    'Prediction',
    'RankRow',
    'RanksSummary',
    'Recommendation',
    'RunComparison',
    'RunEvidence',
    'RunRecord',
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
    'SpeedPoint',
    'StaticBytes',
    'Sweep',
    'SweepRow',
    'SweepSetting',
    'TransformCost',
    'TrialResult',
    'TrialSpec',
    'UnknownRecord',
    'ValidationOutlook',
    'ValidationRecord',
    'Verdict',
    'Verification',
    'WorkersWindow',
]
