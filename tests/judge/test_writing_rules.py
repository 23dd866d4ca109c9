from __future__ import annotations

from collections.abc import Sequence

import pytest

from fakes.replaced import replace
from fakes.runs import add_to_end, make_evidence, make_run
from fakes.saves import (
    HOST,
    LOADER,
    MIB,
    make_aftermath,
    make_calm,
    make_contended,
    make_save,
    walls_of,
)
from mmgpu_hooks.judge.ranks import with_saves_of
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.schema import Diagnosis, Finding, SaveRecord


def fold(saves: Sequence[SaveRecord], **fields) -> Run:
    """A compute-bound run of 40 s beside its saves, each followed by usual waits."""
    run = make_run(host=HOST, loader=LOADER, **fields)
    evidence = make_evidence(run=run, data_wait_s=0.0, step_s=0.25)
    evidence = add_to_end(evidence, checkpoint_save=walls_of(saves))
    end = replace(evidence.end, saves=len(saves))
    return Run(
        replace(
            evidence,
            end=end,
            save_records=tuple(saves),
            save_aftermaths=tuple(make_aftermath(save.iteration) for save in saves),
        )
    )


def diagnose(*saves: SaveRecord, **fields) -> Diagnosis:
    return diagnose_run(fold(saves, **fields))


def finding(diagnosis: Diagnosis, code: str) -> Finding | None:
    return next((f for f in diagnosis.findings if f.code == code), None)


SLOW = {
    'MG304': make_contended(900),
    'MG305': make_save(
        900, run_delay_s=1.6, workers=0, workers_cpu_s=0.0, strangers_cpu_s=3.6
    ),
    'MG306': make_save(900, blocked_s=1.8),
    'MG307': make_save(
        900, blocked_s=1.8, memory_pressure_pct=80.0, major_faults=25_600
    ),
    'MG308': make_save(900, blocked_s=1.8, is_remote=True),
    'MG309': make_save(900, cpu_s=1.8, bytes=900 * MIB, message_hub_bytes=700 * MIB),
    'MG311': make_save(900, blocked_s=1.8, phases={}),
}


@pytest.mark.parametrize('code', SLOW)
def test_slow_saves_are_counted_by_cause(code):
    diagnosis = diagnose(*make_calm(3), SLOW[code])
    held = [c for c in SLOW if finding(diagnosis, c) is not None]
    assert held == [code]
    assert '1 of 4 saves' in finding(diagnosis, code).detail


@pytest.mark.parametrize('code', [f'MG3{n:02d}' for n in (4, 5, 6, 7, 8, 9, 11)])
def test_healthy_saves_have_no_finding(code):
    assert finding(diagnose(*make_calm(8)), code) is None


def test_the_same_cause_is_said_once_with_its_count_and_its_worst():
    saves = [make_contended(10 * i, run_delay_s=0.5 + 0.1 * i) for i in range(1, 6)]
    found = finding(diagnose(*make_calm(5), *saves), 'MG304')
    assert found.detail.startswith('5 of 10 saves took 4.0 s longer in all')
    assert 'lost 4.0 s (net). The worst: Saving iter_50.pth (200 MiB)' in found.detail


@pytest.mark.parametrize(('count', 'severity'), [(2, 'problem'), (1, 'notice')])
def test_contended_saves_are_a_problem_by_their_net_share(count, severity):
    # 1.6 s each; the run takes 42 or 44 s
    saves = [make_contended(10 * i) for i in range(1, count + 1)]
    found = finding(diagnose(*saves), 'MG304')
    assert found.severity == severity
    assert found.share == pytest.approx(1.6 * count / (40 + 2 * count))


def test_a_delay_that_was_won_back_is_no_problem():
    summary = fold([make_contended(10 * i) for i in range(1, 9)])
    back = tuple(
        replace(after, usual_wait_s=0.1, waits_s=0.0)
        for after in summary.save_aftermaths
    )
    diagnosis = diagnose_run(summary.altered(save_aftermaths=back))
    found = finding(diagnosis, 'MG304')
    assert (found.severity, found.share) == ('notice', 0.0)
    assert '8 of 8 saves took 12.8 s longer' in found.detail
    assert 'the job lost 0.0 s (net)' in found.detail


def test_a_net_delay_that_is_unknown_is_not_counted():
    summary = fold([make_contended(10), make_contended(20)])
    one = summary.save_aftermaths[:1]
    part = summary.altered(save_aftermaths=one)
    found = finding(diagnose_run(part), 'MG304')
    assert 'the job lost 1.6 s (net, of the 1 whose iterations after it are' in (
        found.detail
    )
    part = summary.altered(save_aftermaths=())
    found = finding(diagnose_run(part), 'MG304')
    assert (found.severity, found.share) == ('notice', None)
    assert 'what the job lost (net) is not known' in found.detail


def test_a_run_bound_by_its_saves_names_what_held_them():
    saves = [make_contended(10 * i) for i in range(1, 7)]
    verdict = diagnose(*saves).verdict
    assert verdict.name == 'save_bound'
    assert (
        '6 saves took 12.0 s (23 % of the run, 2.000 s each). 9.6 s of it because'
        in (verdict.sentence)
    )


@pytest.mark.parametrize(('delay_s', 'named'), [(0.11, True), (0.09, False)])
def test_small_delays_that_add_up_are_named_in_the_verdict(delay_s, named):
    saves = [
        make_contended(10 * i, cpu_s=0.2, run_delay_s=delay_s) for i in range(1, 31)
    ]
    diagnosis = diagnose(*saves)
    assert finding(diagnosis, 'MG304') is None
    assert diagnosis.verdict.name == 'save_bound'
    assert ('3.3 s of it' in diagnosis.verdict.sentence) is named


def test_a_run_bound_by_healthy_saves_accuses_nobody():
    verdict = diagnose(*make_calm(20)).verdict
    assert verdict.name == 'save_bound'
    assert verdict.sentence.endswith(
        '20 saves took 8.0 s (17 % of the run, 0.400 s each).'
    )


def test_what_saving_costs_is_always_told():
    found = finding(diagnose(*make_calm(4)), 'MG310')
    assert (found.severity, found.detail) == (
        'ok',
        '4 save(s) took 0.400 s each, 1.6 s in all (3.8 % of the run).',
    )
    found = finding(diagnose(*make_calm(3), make_contended(200)), 'MG310')
    assert found.severity == 'notice'
    assert '1 of 4 saves took 1.6 s longer in all than they need' in found.detail
    assert finding(diagnose(), 'MG310') is None


def test_ranks_that_wait_are_counted():
    found = finding(diagnose(*make_calm(4), world_size=8), 'MG310')
    assert 'all 8 ranks stood still meanwhile, 3.2 s of their time per save and ' in (
        found.detail
    )
    assert '12.8 s in all' in found.detail


def test_a_judged_rank_without_saves_has_those_of_the_first():
    first = fold([make_contended(10 * i) for i in range(1, 4)], world_size=2)
    judged = fold([], world_size=2, rank=1)
    diagnosis = diagnose_run(with_saves_of(judged, first))
    assert [entry.cause for entry in diagnosis.saves] == ['workers'] * 3


@pytest.mark.parametrize(
    ('hub', 'fires'), [(21, True), (19, False)], ids=['a tenth', 'hardly a tenth']
)
def test_growing_histories_are_noticed_from_a_tenth_on(hub, fires):
    last = make_save(5000, message_hub_bytes=hub * MIB)
    found = finding(diagnose(*make_calm(3), last), 'MG309')
    assert (found is not None) is fires
    if fires:
        assert found.detail == (
            'Histories take 21 MiB, 10 %, of the checkpoint at iteration 5000, 1 MiB '
            'of the one at iteration 10.'
        )


def test_saves_without_scheduler_statistics_are_said_to_be_unknown():
    why = {'run_delay_s': 'no schedstat'}
    saves = [replace(s, run_delay_s=None, unknown=why) for s in make_calm(3)]
    found = finding(diagnose(*saves), 'MG311')
    assert found.severity == 'unknown'
    assert found.detail.startswith('Cannot tell: 3 of 3 saves; Saving iter_10.pth')
    assert 'cannot tell the rest: no schedstat.' in found.detail
