"""Tests the plans of ``sweep``, ``verify`` and ``save-bench``, and their results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.nvml import FakeGpu
from fakes.runs import make_evidence
from mmgpu_hooks.experiment import sweep
from mmgpu_hooks.experiment.engine import run_plan
from mmgpu_hooks.experiment.save_bench import plan_blocks
from mmgpu_hooks.experiment.store import digest_config, open_store, read_identity
from mmgpu_hooks.experiment.sweep import SweepPlan, list_settings, plan_intervals
from mmgpu_hooks.experiment.verify import VerifyPlan, is_settled
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.prediction import LoaderSetting
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.judged import Estimate
from mmgpu_hooks.schema.tried import (
    FIRST,
    SECOND,
    SIDES,
    SweepSetting,
    Trial,
    TrialSpec,
)

GRID = list_settings({'batch_size': (1, 3), 'num_workers': (0, 2, 1, 2)})


def make_plan(*settings: SweepSetting, folder: Path = Path('/runs'), **more):
    given = {'measure_s': 60.0, 'whole_s': 600.0, **more}
    return SweepPlan('/a.py', folder, settings, **given)


class TestSweep:
    @pytest.mark.parametrize(
        ('workers', 'intervals'),
        [
            (0, (10, 1)),
            (4, (10, 1)),
            # 16 batches are made ahead, so two rounds of ten are left out
            (8, (10, 2)),
            # a round of all workers
            (32, (32, 2)),
        ],
    )
    def test_an_interval_is_a_round_and_the_queue_is_warm_up(self, workers, intervals):
        assert plan_intervals(LoaderSetting(workers, 2, True)) == intervals

    @pytest.mark.parametrize(
        ('setting', 'settings'),
        [
            (SweepSetting(0), {}),
            (
                SweepSetting(16, 3),
                {
                    'train_dataloader.persistent_workers': True,
                    'train_dataloader.batch_size': 3,
                },
            ),
            (
                SweepSetting.of(
                    {
                        'num_workers': 2,
                        'persistent_workers': False,
                        'opencv_num_threads': 4,
                        'batch_size': None,
                        'worker_nice': 10,
                    }
                ),
                {
                    'train_dataloader.persistent_workers': False,
                    'env_cfg.mp_cfg.opencv_num_threads': 4,
                },
            ),
        ],
    )
    def test_only_what_is_asked_for_is_set(self, setting, settings):
        plan = make_plan(setting, lengthened={'train_cfg.max_epochs': 9})
        spec = plan.turns[0].spec
        workers = {'train_dataloader.num_workers': setting.num_workers}
        assert spec.settings == {'train_cfg.max_epochs': 9, **workers, **settings}

    @pytest.mark.parametrize(
        ('measure_s', 'trained', 'status'),
        [
            # its time was up long before it had three
            (1.0, 50, 'completed'),
            (250.0, 50, 'completed'),
            (350.0, 60, 'completed'),
            # it settles with the sixth
            (9000.0, 80, 'completed'),
            (9000.0, 80, 'loss_not_finite'),
        ],
    )
    def test_a_slow_trial_ends_when_its_time_is_up(
        self, scripted, monkeypatch, tmp_path, measure_s, trained, status
    ):
        def read(folder: Path) -> Run:
            return Run(make_evidence(scripted.started[0].trained // 10, step_s=5.0))

        monkeypatch.setattr(sweep, 'read_trial_run', read)
        scripted.iteration_s = staticmethod(lambda spec: 10.0)
        scripted.is_loss_finite = status == 'completed'
        setting = SweepSetting(0)
        limits = {'measure_s': measure_s, 'whole_s': 1e6}
        plan = make_plan(setting, folder=tmp_path, **limits)
        result = plan.finish(run_plan(plan))
        (found,) = result.rows
        assert (found.status, scripted.started[0].trained) == (status, trained)
        assert result.best == (setting,) * scripted.is_loss_finite

    def test_niceness_is_an_argument_of_the_hook_of_its_trial(self):
        setting = SweepSetting.of({'num_workers': 2, 'worker_nice': 10})
        plan = make_plan(setting, saves=2)
        assert plan.turns[0].spec.hook == {'interval': 10, 'worker_nice': 10}
        assert setting.name == '2 workers, worker_nice 10'

    def test_what_only_workers_have_is_trained_once_without_them(self):
        asked = {'num_workers': (0, 2), 'prefetch_factor': (2, 4)}
        found = list_settings({**asked, 'persistent_workers': (False, True)})
        assert len(found) == 5
        assert found[0] == SweepSetting(0)

    def test_a_config_that_does_not_train_is_given_up_early(self, scripted, tmp_path):
        scripted.ending = staticmethod(lambda spec: ('failed', 'E: no'))
        plan = make_plan(*GRID, folder=tmp_path)
        with pytest.raises(UserError, match=r'2 trials failed, the last with .*E: no'):
            run_plan(plan)
        assert len(scripted.started) == 2

    @pytest.mark.parametrize('status', ['completed', 'out_of_memory', 'timed_out'])
    def test_what_is_done_need_not_be_done_again(self, status):
        plan = make_plan(SweepSetting(2))
        trials = [Trial('2 workers', status), Trial('3 workers', status)]
        assert plan.keep(trials) == trials[:1]
        # what crashed may have been mended
        assert plan.keep([Trial('2 workers', 'failed')]) == []


def make_verify(folder: Path, **more) -> VerifyPlan:
    specs = [TrialSpec('a.py', str(folder / name)) for name in ('first', 'second')]
    given = {'workers': (0, 2), 'budget_s': 300.0, **more}
    return VerifyPlan((specs[0], specs[1]), **given)


class TestVerify:
    def test_blocks_alternate_and_the_other_training_is_held(self, scripted, tmp_path):
        scripted.iteration_s = staticmethod(
            lambda spec: 0.2 if spec.folder.endswith('first') else 0.1
        )
        plan = make_verify(tmp_path)
        outcome = run_plan(plan, max_seconds=300.0)
        found = plan.finish(outcome)
        assert found.gain.value == pytest.approx(1.0)
        assert (found.before_s, found.after_s) == pytest.approx((0.2, 0.1))
        assert found.iteration_change.value == pytest.approx(-0.5)
        rates = (found.before_images_per_s, found.after_images_per_s)
        assert rates == pytest.approx((10.0, 20.0))
        assert (found.gain.count, found.ending) == (6, 'the gain is known well enough')
        sides = [trial.role.side for trial in outcome.trials]
        assert sides == [*SIDES, *[FIRST, SECOND, SECOND, FIRST] * 3]
        ways = [(trial.role.is_held, trial.role.is_warm_up) for trial in outcome.trials]
        assert ways == [(True, True)] * 2 + [(True, False)] * 12
        assert len(scripted.started) == 2
        # three seconds of 150 ms, after a batch of each worker and two more
        assert found.iterations == 6 * 20
        assert scripted.started[0].trained == 10 + 6 * 24

    @pytest.mark.parametrize('fails', ['first', 'second'])
    def test_the_config_that_does_not_train_is_named(self, scripted, tmp_path, fails):
        scripted.ending = staticmethod(
            lambda spec: ('failed', 'E: no') if spec.folder.endswith(fails) else None
        )
        plan = make_verify(tmp_path)
        outcome = run_plan(plan, max_seconds=300.0)
        with pytest.raises(UserError, match=rf'the {fails} one does not \(E: no\)'):
            plan.finish(outcome)

    def test_what_does_not_fit_together_is_trained_one_at_a_time(
        self, scripted, tmp_path
    ):
        def end(spec: TrialSpec) -> tuple[str, str] | None:
            # the first one is there already
            is_second = len(scripted.started) == 2
            return ('out_of_memory', 'no room') if is_second else None

        scripted.ending = staticmethod(end)
        plan = make_verify(tmp_path / 'trials', budget_s=3000.0)
        # warm-ups that lack memory together, those alone, then two blocks with theirs
        with open_store(tmp_path / 'kept', {}) as store:
            assert len(run_plan(plan, store, max_seconds=15.0).trials) == 7
        begun = len(scripted.started)
        with open_store(tmp_path / 'kept', {}) as store:
            found = plan.finish(run_plan(plan, store, max_seconds=3000.0))
        assert 'did not fit in memory together (no room)' in found.notes[0]
        assert found.gain.count == 6
        # each block is a training of its own, and the first pair is not trained again
        assert len(scripted.started) - begun == 2 * 5

    @pytest.mark.parametrize(
        ('sizes', 'gain', 'rates'),
        [
            # twice the images in as much time
            ((2, 4), 1.0, (20.0, 40.0)),
            # unknown of one: iterations are compared
            ((2, None), 0.0, (20.0, None)),
        ],
    )
    def test_another_batch_size_is_compared_in_images(
        self, scripted, tmp_path, sizes, gain, rates
    ):
        by_side = dict(zip(SIDES, sizes))
        scripted.batch_size = staticmethod(lambda spec: by_side[Path(spec.folder).name])
        plan = make_verify(tmp_path)
        found = plan.finish(run_plan(plan, max_seconds=300.0))
        assert found.gain.value == pytest.approx(gain)
        assert found.iteration_change.value == pytest.approx(0.0)
        found_rates = (found.before_images_per_s, found.after_images_per_s)
        assert found_rates == pytest.approx(rates)

    def test_too_few_pairs_are_said_to_be(self, scripted, tmp_path):
        scripted.iteration_s = staticmethod(lambda spec: 5.0)
        plan = make_verify(tmp_path)
        with pytest.raises(UserError, match='the time budget is used up'):
            plan.finish(run_plan(plan, max_seconds=200.0))

    def test_whole_pairs_of_an_earlier_start_count(self, scripted, tmp_path):
        plan = make_verify(tmp_path / 'trials')
        scripted.iteration_s = staticmethod(lambda spec: 0.1)
        with open_store(tmp_path / 'kept', {}) as store:
            # warm-ups of a second each, then three blocks of 3.4 s
            assert len(run_plan(plan, store, max_seconds=12.0).trials) == 5
        scripted.started.clear()
        with open_store(tmp_path / 'kept', {}) as store:
            found = plan.finish(run_plan(plan, store, max_seconds=300.0))
        assert found.gain.count == 6
        # of each, what remained to be trained, after a warm-up
        assert [child.trained for child in scripted.started] == [10 + 5 * 34] * 2

    @pytest.mark.parametrize(
        ('value', 'half', 'pairs', 'settled'),
        [
            (0.0, 0.019, 6, True),
            (0.0, 0.021, 6, False),
            (0.5, 0.049, 6, True),
            (-0.5, 0.051, 8, False),
            (0.0, 0.001, 7, False),
            (0.0, 0.001, 4, False),
        ],
    )
    def test_a_precise_gain_of_even_pairs_is_settled(self, value, half, pairs, settled):
        gain = Estimate(value, value - half, value + half, pairs)
        assert is_settled(gain) is settled
        assert is_settled(None) is False


class TestSaves:
    @pytest.mark.parametrize(
        ('workers', 'prefetch', 'planned'),
        [
            (0, 2, (8, 56)),
            # 16 batches and 8 iterations from save to save, 16 after the last
            (8, 2, (24, 184)),
            (8, 4, (40, 312)),
            # 64 batches, and a round of 32 workers
            (32, 2, (96, 736)),
        ],
    )
    def test_saves_are_as_far_apart_as_the_queue_is_long(
        self, workers, prefetch, planned
    ):
        blocks = plan_blocks(workers, saves=6, prefetch_factor=prefetch)
        assert (blocks[0], sum(blocks)) == planned


def make_function():
    def collate(items):
        return items

    return collate


def test_a_config_is_known_by_what_it_says():
    config = {('a',): 1, ('b', '0'): 'x', ('c',): print}
    assert digest_config(config) == digest_config(dict(reversed(config.items())))
    assert digest_config(config) != digest_config({**config, ('a',): 2})
    # the text of a function differs from process to process, its name does not
    assert digest_config({('c',): make_function()}) == digest_config(
        {('c',): make_function()}
    )
    assert digest_config({('c',): print}) != digest_config({('c',): len})


def test_what_a_measurement_depends_on_is_named(monkeypatch):
    monkeypatch.setenv('OMP_NUM_THREADS', '1')
    first, again = (read_identity({('a',): 1}, saves=False) for _ in range(2))
    monkeypatch.delenv('OMP_NUM_THREADS')
    other = read_identity({('a',): 2}, saves=True)
    assert json.loads(json.dumps(first)) == first == again
    differing = [name for name in first if first[name] != other[name]]
    assert differing == ['config', 'environment', 'saves']


def test_trials_of_another_card_are_others(fake_nvml):
    first = read_identity({})
    fake_nvml.set(FakeGpu(uuid='GPU-another'))
    again = read_identity({})
    assert [name for name in first if again[name] != first[name]] == ['host']
