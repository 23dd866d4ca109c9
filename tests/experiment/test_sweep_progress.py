from __future__ import annotations

from mmgpu_hooks.experiment.sweep_progress import SweepProgress
from mmgpu_hooks.experiment.sweep_trial import SweepOutcome
from mmgpu_hooks.schema import Estimate, SweepSetting


def test_it_says_how_far_the_sweep_is_and_how_long_it_still_takes():
    told: list[tuple[str, float]] = []
    progress = SweepProgress(lambda *heard: told.append(heard), 4, 1)
    with progress.of(SweepSetting(2, 4)) as tell:
        tell(SweepOutcome(iterations=20))
        iter_s = Estimate(0.5, 0.49, 0.51, 6)
        tell(SweepOutcome(iterations=70, iter_s=iter_s))
    assert told == [
        ('2 of 4: 2 workers, batch 4, starting', 0.25),
        ('2 of 4: 2 workers, batch 4, iteration 20', 0.25),
        ('2 of 4: 2 workers, batch 4, iteration 70, 0.5 s +-2 %', 0.25),
    ]
    progress.add(120.0)
    with progress.of(SweepSetting(4, 4)):
        pass
    said = '3 of 4: 4 workers, batch 4, starting; about 4.0 min left'
    assert told[-1] == (said, 0.5)


def test_trials_side_by_side_take_less():
    told: list[tuple[str, float]] = []
    progress = SweepProgress(lambda *heard: told.append(heard), 5, 0, 2)
    progress.add(60.0)
    with progress.of(SweepSetting(0)):
        pass
    assert told[-1][0].endswith('; about 2.0 min left')
