"""Whose numbers of workers are shown where both loaders change."""

from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.reported import make_reported
from fakes.runs import make_evidence, make_inside_workers
from mmgpu_hooks.commands.what_if import predict_workers
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import Change
from mmgpu_hooks.show.pictures.what_if_chart import marked_workers

TRAIN = Change('train_dataloader.num_workers', 2, 7, 'it waits', 'high')
VALIDATION = Change('val_dataloader.num_workers', 1, 5, 'it waits', 'high')


@pytest.mark.parametrize(
    ('changes', 'marked'),
    [
        ((VALIDATION,), {2: 'now'}),
        ((TRAIN, VALIDATION), {2: 'now', 7: 'recommended'}),
    ],
)
def test_the_workers_of_validation_are_no_workers_of_training(
    changes: tuple[Change, ...], marked: dict[int, str]
) -> None:
    evidence = make_evidence(data_wait_s=0.2, workers=make_inside_workers(0.62))
    run = make_reported(evidence)
    assert run.answer.summary is not None
    assert run.answer.summary.run.loader.num_workers == 2
    recommendation = replace(run.answer.recommendation, changes=changes)
    run = replace(run, answer=replace(run.answer, recommendation=recommendation))
    assert marked_workers(run) == marked
    predictions, _ = predict_workers(Run(evidence), changes)
    shown = {one.num_workers for one in predictions}
    assert 5 not in shown
    assert (7 in shown) == (TRAIN in changes)
