from __future__ import annotations

import pytest

from fakes.runs import make_evidence, make_run
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.policy import KEY, pair_settings, sum_predicted_gain
from mmgpu_hooks.schema.judged import Change, Recommendation
from mmgpu_hooks.schema.recorded import LoaderSettings


def summary_of(*loader: object) -> Run:
    names = LoaderSettings.__struct_fields__
    settings = LoaderSettings(**dict(zip(names, loader)))
    return Run(make_evidence(run=make_run(loader=settings)))


def recommend(**settings: object) -> Recommendation:
    return Recommendation(
        tuple(
            Change(KEY + name, 1, new, 'it helps', 'high', predicted_iter_s=0.2)
            for name, new in settings.items()
        )
    )


@pytest.mark.parametrize(
    ('loader', 'changes', 'after'),
    [
        (
            (2, False, 4, True, 4),
            {'num_workers': 3, 'persistent_workers': True},
            {
                'num_workers': 3,
                'persistent_workers': True,
                'prefetch_factor': 4,
                'pin_memory': True,
            },
        ),
        (
            (0, False, None, False, 4),
            {'num_workers': 1},
            {'num_workers': 1, 'persistent_workers': False, 'pin_memory': False},
        ),
        (
            (2, True, 4, False, 4),
            {'num_workers': 0, 'prefetch_factor': None, 'persistent_workers': False},
            {
                'num_workers': 0,
                'prefetch_factor': None,
                'persistent_workers': False,
                'pin_memory': False,
            },
        ),
    ],
)
def test_what_ran_is_trained_again_with_the_changes(loader, changes, after):
    before, wanted = pair_settings(summary_of(*loader), recommend(**changes))
    assert before[KEY + 'num_workers'] == loader[0]
    assert wanted == {KEY + name: value for name, value in after.items()}


def test_nothing_recommended_of_the_train_loader_is_nothing_to_train():
    summary = summary_of(2, False, 4, True, 4)
    assert pair_settings(summary, Recommendation(reason='It keeps up.')) is None
    other = Change('val_dataloader.num_workers', 2, 4, 'it helps', 'high')
    assert pair_settings(summary, Recommendation((other,))) is None


def test_the_predicted_gain_is_in_images_per_second():
    summary = summary_of(2, False, 4, True, 4).altered(iter_s=0.3)
    assert sum_predicted_gain(summary, recommend(num_workers=3)) == pytest.approx(0.5)
    twice = Recommendation(
        (Change(KEY + 'batch_size', 4, 8, 'it fits', 'high', predicted_iter_s=0.4),)
    )
    assert sum_predicted_gain(summary, twice) == pytest.approx(0.5)
    silent = Recommendation((Change(KEY + 'pin_memory', False, True, 'x', 'low'),))
    assert sum_predicted_gain(summary, silent) is None
