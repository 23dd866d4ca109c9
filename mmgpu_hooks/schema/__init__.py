"""What is recorded and what is answered: frozen, and the unit is in each name.

``None`` always means *unknown* and never zero; where a figure can be unknown
for several reasons, the record carries the reason beside it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from mmgpu_hooks.schema.judged import (
    SAVE_CAUSES,
    Change,
    Diagnosis,
    Estimate,
    FigureComparison,
    Finding,
    HostNow,
    LearningRate,
    Proof,
    Recommendation,
    RunComparison,
    SaveCure,
    SaveJudgement,
    SettingComparison,
    ValidationOutlook,
    Verdict,
    Verification,
    Why,
)
from mmgpu_hooks.schema.memory import (
    ActivationFit,
    ActivationPoint,
    CardFit,
    MemoryEstimate,
    StaticBytes,
)
from mmgpu_hooks.schema.predicted import FittedRun, NoPrediction, Prediction
from mmgpu_hooks.schema.recorded import (
    SAVE_PHASES,
    SCHEMA_VERSION,
    CudaMemoryWindow,
    DurationStats,
    EndRecord,
    GpuDevice,
    GpuWindow,
    HostLimits,
    HostWindow,
    IntervalRecord,
    LoaderSettings,
    RunRecord,
    SaveAftermathRecord,
    SavePhase,
    SaveRecord,
    SlowSample,
    SourceOffRecord,
    StuckRecord,
    TransformCost,
    UnknownRecord,
    ValidationRecord,
    WorkersWindow,
)
from mmgpu_hooks.schema.run import (
    RankRow,
    RanksSummary,
    RunEvidence,
)

if TYPE_CHECKING:
    from mmgpu_hooks.schema.tried import (
        MEMORY_SOURCES,
        ModuleTime,
        PartTime,
        Profile,
        SaveBench,
        SaveBenchRow,
        SavePlan,
        SaveSetting,
        Sweep,
        SweepRow,
        SweepSetting,
        Trial,
        TrialSpec,
    )


def __getattr__(name: str) -> Any:
    # experiments' records, late: judging a run needs none of them
    found = importlib.import_module('mmgpu_hooks.schema.tried')
    if hasattr(found, name):
        return getattr(found, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
