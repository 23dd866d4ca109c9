"""Tests that ranks agree on new loader settings through a store, without waiting."""

from __future__ import annotations

import pytest

from fakes.store import Store
from fakes.tuning import propose, settings
from mmgpu_hooks.hooks import tune_ranks
from mmgpu_hooks.hooks.tune_ranks import NEVER, RankAgreement
from mmgpu_hooks.schema.tuning import TuneOffer


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> list[RankAgreement]:
    store = Store()
    made = []
    for rank in range(3):
        # each has a process of its own
        monkeypatch.setattr(tune_ranks, '_trainings', iter(range(5)))
        made.append(RankAgreement(rank, 3, store))
    return made


def an_offer(workers: int = 2) -> TuneOffer:
    record = propose(settings(0), settings(workers)).proposed
    assert record is not None
    return TuneOffer(record=record, salt=7)


def test_all_ranks_learn_the_iteration_once_all_can_change(ranks):
    first, *others = ranks
    assert [rank.look() for rank in others] == [None, None]
    first.offer(an_offer())
    first.answer(can_change=True)
    assert first.read_answers() is None
    for rank in others:
        assert rank.look() == an_offer()
        assert rank.read_decision() is None
        rank.answer(can_change=True)
    assert first.read_answers() is True
    first.decide(70)
    assert [rank.read_decision() for rank in ranks] == [70, 70, 70]


def test_one_rank_that_cannot_change_keeps_all_from_changing(ranks):
    first, second, _ = ranks
    first.offer(an_offer())
    second.look()
    second.answer(can_change=False)
    # the third is late, or has died
    assert first.read_answers() is False
    first.decide(NEVER)
    assert second.read_decision() == NEVER


def test_a_rank_that_does_not_answer_leaves_the_change_open(ranks):
    first, second, _ = ranks
    first.offer(an_offer())
    first.answer(can_change=True)
    second.look()
    second.answer(can_change=True)
    assert first.read_answers() is None
    assert second.read_decision() is None


def test_the_next_offer_has_answers_of_its_own(ranks):
    first, second, third = ranks
    for workers in (2, 3):
        first.offer(an_offer(workers))
        assert first.read_answers() is None
        for rank in (second, third):
            offer = rank.look()
            assert offer is not None
            assert offer.record.new.num_workers == workers
            rank.answer(can_change=True)
        first.answer(can_change=True)
        assert first.read_answers() is True
