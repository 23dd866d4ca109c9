"""Cards that fail in mid-run: the training goes on, the figures end with a reason."""

from __future__ import annotations

import pytest

from mock_card.trainings import MockCards, Training

LOOKS = {'gpu_sample_period_s': 0.05}
LATER = 60
"""Calls of the driver: more than the first interval makes, less than all."""


@pytest.fixture(scope='module')
def failing(mock_cards: MockCards) -> dict[str, Training]:
    busy = {'utilization': {'gpu': 71, 'memory': 0}}

    def failure(mode: str, **more: object) -> dict[str, object]:
        return {'failure': {'mode': mode, **more}, **busy}

    drivers = {
        'plain': busy,
        'lost': failure('lost', after_calls=LATER),
        'fallen': failure('fallen_off_bus', after_calls=LATER, xid={'code': 79}),
        'ecc': failure('ecc_uncorrectable', after_calls=LATER),
        'flaky': failure('lost', probability=0.02),
    }
    started = {
        name: mock_cards.start(
            name,
            iterations=40,
            hook=None if name == 'plain' else LOOKS,
            driver=driver,
        )
        for name, driver in drivers.items()
    }
    for training in started.values():
        assert training.wait() == 0, training.printed
    return started


@pytest.mark.parametrize('name', ['lost', 'fallen'])
def test_a_card_that_is_lost_ends_its_figures(
    failing: dict[str, Training], name: str
) -> None:
    training = failing[name]
    assert training.losses == failing['plain'].losses
    assert training.printed.count('is switched off for this run') == 1
    assert 'GPU is switched off for this run (' in training.printed
    run = training.run
    assert run.status == 'completed'
    assert [off.source for off in run.evidence.sources_off] == ['GPU']
    *_, last = (record for record in run.intervals if record.gpu is not None)
    assert last.gpu is not None and last.gpu.util_pct == pytest.approx(71)
    assert 0 < last.iteration < run.intervals[-1].iteration


@pytest.mark.parametrize('name', ['ecc', 'flaky'])
def test_other_failures_leave_training_alone(
    failing: dict[str, Training], name: str
) -> None:
    training = failing[name]
    assert training.losses == failing['plain'].losses
    assert training.run.status == 'completed'
    assert training.printed.count('is switched off for this run') <= 1
