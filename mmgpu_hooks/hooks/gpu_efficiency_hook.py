"""``GPUEfficiencyHook``, the hook that users add to their config.

An iteration ends at this hook (priority 55). Hooks after it, LoggerHook among them,
belong to the next iteration: no second is lost, and the figures are complete when
LoggerHook prints them.

The train loader is reached before its workers start: from the hook's constructor until
the train loop is built, ``hooks/train_loop_watch.py`` replaces ``BaseLoop.__init__``
and calls `begin_loop` and `see_loop` back. Start-up counts from the constructor, too:
what the Runner took until its train loop began is ``build_s`` in the run record, and
in no interval.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Callable

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop

from mmgpu_hooks.adviser.process import ask_adviser
from mmgpu_hooks.adviser.ranks import choose_rank
from mmgpu_hooks.config.hook_arguments import check_argument, parse_optimizations
from mmgpu_hooks.config.switches import DISABLE, is_disabled
from mmgpu_hooks.hooks.lone_loops import LONE_LOOP_SOURCE, LoneLoop
from mmgpu_hooks.hooks.memory_source import MEMORY_SOURCE
from mmgpu_hooks.hooks.recorder import Recorder
from mmgpu_hooks.hooks.recording import Guard
from mmgpu_hooks.hooks.scalars import MAIN, SCALARS
from mmgpu_hooks.hooks.sources import open_train_probe
from mmgpu_hooks.hooks.start import START_SOURCE, Start, StartListener
from mmgpu_hooks.hooks.start_source import ACCOUNT_SOURCE, StartSource
from mmgpu_hooks.hooks.train_loop_watch import (
    expect_no_train_loop,
    expect_train_loop,
)
from mmgpu_hooks.hooks.tuned_start import TunedStart, begin_tuned
from mmgpu_hooks.hooks.tuner import TUNER_SOURCE
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.optimize.optimizations import Optimizations
from mmgpu_hooks.schema.judged import Diagnosis, RunAdvice
from mmgpu_hooks.schema.recorded import SparedTime
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.show.summary import render_training_summary
from mmgpu_hooks.show.text import visible
from mmgpu_hooks.show.validation import phrase_validation
from mmgpu_hooks.show.words import say

_LIVE = (
    'built_s',
    '_recorder',
    '_pid',
    '_logger',
    '_guard',
    '_patches',
    '_probe',
    '_is_disabled',
    'after_train_iter',
    '_optimizations',
    'spared',
    '_start',
    '_start_account',
    '_lone_loop',
    '_knows_end',
    'tuned_start',
)
"""Names of the hook's attributes for a running training, left out of its copies."""

_LONE_LOOPS = 'val_loop', 'test_loop'
"""Names of a Runner's loops that may run without training."""


@HOOKS.register_module(force=True)
class GPUEfficiencyHook(Hook):
    """Logs how the time of each log interval was spent, and a summary at the end.

    Scalars, each once per interval, under the prefix ``train/`` of MMEngine's
    message hub (terminal line, TensorBoard and every other backend):

    ======================== ===================================================
    ``data_wait_s``          mean wait for a batch, s per iteration
    ``iter_s``               mean iteration (wait + step + hooks), s
    ``data_wait_pct``        share of iteration time spent waiting for data, %
    ``images_per_s``         images per second of iteration, this rank
    ``gpu_util_pct``         NVML utilisation, time-weighted, %
    ``gpu_zero_pct``         share of the sampled time at 0 % utilisation, %
    ``gpu_mem_peak_mib``     peak bytes of the CUDA allocator, MiB
    ``save_s``               mean checkpoint save, s; where the interval had one
    ======================== ===================================================

    With ``scalars='all'`` also:

    ======================== ===================================================
    ``step_s``               mean step (forward, backward, optimizer), s
    ``gpu_idle_pct``         GPU idle between two steps, of the time, %
    ``gpu_mem_reserved_mib`` most bytes the allocator held, MiB
    ``process_cpu_cores``    cores the training process used (without workers)
    ``system_cpu_pct``       busy share of all CPUs of the host, %
    ``hours_left``           until training ends, validations and saves too, h
    ``num_workers``          workers of the train loader
    ======================== ===================================================

    A figure that is unknown (no GPU, no NVML) is left out; the evidence file
    ``<work_dir>/<timestamp>/vis_data/gpu_efficiency.jsonl`` says why.

    Nothing of this hook can stop a training: a source that fails is switched off
    with one warning.

    Args:
        interval: Iterations per record. By default records end exactly where LoggerHook
            logs. The scalars appear on LoggerHook's lines.
        gpu_sample_period_s: Seconds between two samples of the GPU, on average.
            Defaults to 0.2.
        summary: Whether the main process logs a summary when training ends.
            Defaults to True.
        worker_nice: Nice value of the train loader's workers, 0 to 19: with 10 the
            thread that trains and saves goes first where cores are short. Defaults to
            ``None``, which leaves it alone. No loss changes.
        stuck_after_s: The log says where training stands when nothing went on for so
            many seconds and 20 times what it usually takes (10 times so many where it
            has not ended once). Nothing is ended. Defaults to 60; 0 switches it off.
        scalars: ``main`` or ``all``, as above. Defaults to ``main``.
        write_config: Whether a training that ends by itself leaves the recommended
            config in the run's folder. A child process writes it, after the last save
            and before the summary, in a second or two; after 10 it is killed. Defaults
            to True.
        slurm_comment: Whether the verdict goes into the comment of SLURM's job, as
            ``mmgpu: data-bound 54 %, num_workers 0 -> 8``: once in about an hour and at
            the end. A comment that the user gave stays. Defaults to False.
        optimize: What to make cheaper: names with commas or in a list. Host overhead of
            a step, with the trained weights the same to the last bit:
            ``param_groups``, ``ema``, ``small_tensors`` and ``history``, or ``all`` of
            these. ``annotations`` keeps what data sets parse in the folder
            ``MMGPU_CACHE`` and maps it at the next start. ``resume`` skips what a
            resumed iteration-based training has trained on without loading it; random
            augmentation then differs. The log says what each changed, or why it is not
            used. Defaults to ``None``, which is none.
        tune: Whether the train loader is given the recommended number of workers,
            prefetching, persistence, OpenCV threads and niceness while it trains, as
            soon as that is sure to pay: no sample is lost or comes twice, and the order
            stays. With one rank validation's loader gets the first three, too. What
            that gave is measured, and a loss is taken back. The random numbers of
            augmentation are others from there on, as after a restart. Defaults to
            False.

    Raises:
        TypeError: If an argument has another type.
        ValueError: If a number is out of range, ``scalars`` is neither, or a name in
            ``optimize`` is unknown.

    Examples:
        >>> # merges with the base's hooks, unlike custom_hooks=[...]
        >>> default_hooks = dict(
        ...     gpu_efficiency=dict(type='mmgpu_hooks.GPUEfficiencyHook'))
    """

    # after IterTimerHook (50) and the loss reading (10), before LoggerHook (60)
    priority = 55

    added_by: str | None = None
    """Command (``mmgpu run``) that added the hook; ``None`` if the user did."""
    before_hook_s: Mapping[str, float] | None = None
    """Seconds of each part of startup, from process start to the hook's creation."""
    command_arguments: Mapping[str, Any] | None = None
    """Hook arguments given to ``mmgpu run``, by name; ``None`` without it."""

    def __init__(
        self,
        interval: int | None = None,
        gpu_sample_period_s: float = 0.2,
        summary: bool = True,
        worker_nice: int | None = None,
        stuck_after_s: float = 60,
        scalars: str = 'main',
        write_config: bool = True,
        slurm_comment: bool = False,
        optimize: str | Sequence[str] | None = None,
        tune: bool = False,
    ) -> None:
        check_argument('interval', interval)
        check_argument('gpu_sample_period_s', gpu_sample_period_s)
        check_argument('summary', summary)
        check_argument('worker_nice', worker_nice)
        check_argument('stuck_after_s', stuck_after_s)
        check_argument('scalars', scalars)
        check_argument('write_config', write_config)
        check_argument('slurm_comment', slurm_comment)
        check_argument('optimize', optimize)
        check_argument('tune', tune)
        self.interval = interval
        self.scalars = scalars
        self.stuck_after_s = float(stuck_after_s)
        self.gpu_sample_period_s = float(gpu_sample_period_s)
        self.summary = summary
        self.write_config = write_config
        self.slurm_comment = slurm_comment
        self.optimize = optimize
        self.tune = tune
        self.worker_nice = worker_nice
        self._set_live_parts()

    def change_arguments(self, changed: Mapping[str, Any]) -> None:
        """Checks and sets new values of some of the hook's arguments, given by name.

        An argument that training has read is not read again.

        Args:
            changed: By name, as the constructor takes them.

        Raises:
            TypeError: As the constructor.
            ValueError: Likewise.
        """
        for name, value in changed.items():
            check_argument(name, value)
        for name, value in changed.items():
            setattr(self, name, value)

    def note_command(
        self, arguments: Mapping[str, Any], added_by: str | None = None
    ) -> None:
        """Stores the hook arguments given to the command that started the training.

        Args:
            arguments: Arguments of the hook that the command was given.
            added_by: The command, if it added this hook.
        """
        self.command_arguments = arguments
        if added_by is not None:
            self.added_by = added_by

    def note_start(self, before_hook_s: Mapping[str, float] | None) -> None:
        """Stores the seconds from process start to the hook's creation, by part."""
        self.before_hook_s = before_hook_s

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """Names of the scalars that the hook publishes to MMEngine's message hub."""
        return SCALARS if self.scalars == 'all' else MAIN

    @property
    def optimized(self) -> tuple[str, ...]:
        """Names of the optimisations of ``optimize`` that are switched on now."""
        optimizations = self._optimizations
        return () if optimizations is None else optimizations.names

    def _set_live_parts(self) -> None:
        """Resets the attributes that a copied or unpickled hook must not share."""
        self.built_s = monotonic_s()
        self._recorder: Recorder | None = None
        self._pid = os.getpid()
        self._logger: Any = None
        self._guard = Guard(self._warn_off)
        self._patches = Patches()
        self._probe: LoaderProbe | None = None
        self._optimizations: Optimizations | None = None
        self.spared: Mapping[str, SparedTime] | None = None
        self._start: Start | None = None
        self._start_account: StartSource | None = None
        self._lone_loop: LoneLoop | None = None
        self._knows_end = False
        """True while a val or test loop runs whose end is noticed even if it fails."""
        self.tuned_start: TunedStart | None = None
        self._is_disabled = is_disabled(os.environ)
        if not self._is_disabled:
            self._guard.run('loader workers', expect_train_loop, self)
            self._start_account = self._guard.run(ACCOUNT_SOURCE, self._follow_start)

    def __getstate__(self) -> dict[str, Any]:
        return {name: own for name, own in vars(self).items() if name not in _LIVE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_live_parts()

    def _warn_off(self, source: str, reason: str) -> None:
        if self._logger is not None:
            self._logger.warning(
                say(
                    phrase(
                        'GPUEfficiencyHook: {source} is switched off for this run '
                        '({reason}); training goes on.',
                        source=source,
                        reason=reason,
                    )
                )
            )
        if self._recorder is not None:
            self._recorder.note_source_off(source, reason)

    @property
    def dataset_bytes(self) -> int | None:
        """Bytes by which this process grew in building the train loader, if known."""
        start = self._start
        return None if start is None else start.memory.dataset_bytes

    def _follow_start(self) -> StartSource:
        return StartSource(partial(self._guard.run, ACCOUNT_SOURCE))

    def begin_loop(self, runner: Any) -> None:
        """Begins to watch and time training's start, before the train loop is built."""
        self._logger = runner.logger
        if _find_recording(runner) is not self:
            self._start_account = None
            return
        account = self._start_account
        start = self._start = self._guard.run(
            START_SOURCE, Start, runner, self.stuck_after_s, self._guard.run, account
        )
        if start is None:
            return
        if account is not None:
            write = start.file.write
            self._guard.run(ACCOUNT_SOURCE, account.begin_loop, runner, write)
        self._guard.run(MEMORY_SOURCE, start.memory.begin_loader)
        optimizations = self._provide_optimizations()
        if optimizations is not None and account is not None:
            optimizations.begin_data_sets(account.watch)

    def end_start(self) -> None:
        """Stops watching training's start for standstills; may be called twice."""
        if self._start is not None:
            self._guard.clean_up(START_SOURCE, self._start.close)

    def see_loop(self, loop: Any) -> None:
        """Begins to measure a new train loop's DataLoader, before it has workers."""
        if self._start is not None:
            self._guard.run(MEMORY_SOURCE, self._start.memory.end_loader)
        if self._start_account is not None:
            self._guard.run(ACCOUNT_SOURCE, self._start_account.end_loader)
        runner = loop.runner
        self._logger = runner.logger
        # iteration-based loops make their iterator now, others once they run
        listener = StartListener(
            self._guard.run, self._start, self._start_account, self._take_back
        )
        self._probe = open_train_probe(self._guard, runner, loop.dataloader, listener)
        optimizations = self._provide_optimizations()
        if optimizations is not None:
            optimizations.begin_loader(loop.dataloader)
        if self.tune and self._probe is not None:
            self._guard.run(TUNER_SOURCE, self._begin_tuned, runner, self._probe)

    def _begin_tuned(self, runner: Any, probe: LoaderProbe) -> None:
        self.tuned_start = begin_tuned(runner, probe.loader, self._book_teardown)

    def _take_back(self, error: Exception) -> bool:
        """Restores the config's loader settings if no workers start with tuned ones."""
        start = self.tuned_start
        return start is not None and start.switch.take_back(error)

    def _book_teardown(self) -> AbstractContextManager[Any]:
        """Context whose time is recorded as spent on ending a loader's old workers."""
        if self._recorder is None:
            return contextlib.nullcontext()
        return self._recorder.book_teardown()

    def _provide_optimizations(self) -> Optimizations | None:
        """Creates the optimisations that ``optimize`` names, once; ``None`` if none."""
        names = parse_optimizations(self.optimize)
        if names and self._optimizations is None:
            self._optimizations = Optimizations(names, self._logger)
        return self._optimizations

    def _end_optimizations(self, *, is_over: bool = False) -> None:
        optimizations, self._optimizations = self._optimizations, None
        if optimizations is None:
            return
        if is_over:
            self.spared = self._guard.run('spared time', lambda: optimizations.spared)
            self._guard.run('spared time', optimizations.report)
        optimizations.close()

    def before_run(self, runner: Any) -> None:
        self._logger = runner.logger
        if self._is_disabled:
            self._logger.info(
                say(
                    phrase(
                        'GPUEfficiencyHook: off, since {disable} is set.',
                        disable=DISABLE,
                    )
                )
            )
            return
        expect_no_train_loop(self)
        if not self._guard.run('start', self._wrap_train_loop, runner):
            self._let_go()
        self._guard.run(LONE_LOOP_SOURCE, self._wrap_lone_loops, runner)

    def _wrap_train_loop(self, runner: Any) -> bool:
        # after a val() that failed ours is still there
        self._patches.close()
        # val() and test() call before_run too, with no train loop built yet
        loop = getattr(runner, '_train_loop', None)
        if not isinstance(loop, BaseLoop):
            return False
        if _find_recording(runner) is not self:
            if self.added_by is None:
                self._logger.warning(
                    say(
                        phrase(
                            'GPUEfficiencyHook: expected one in a config, found '
                            'several; only the first records, so remove the others.'
                        )
                    )
                )
            return False
        original = loop.run

        def run(*args: Any, **kwargs: Any) -> Any:
            self._begin(runner)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                self._finish(error)
                raise
            self._finish(None)
            return result

        self._patches.set(loop, 'run', run)
        return True

    def _wrap_lone_loops(self, runner: Any) -> None:
        """Replaces ``run`` of val and test loops, to notice when one fails."""
        if _find_recording(runner) is not self:
            return
        for name in _LONE_LOOPS:
            loop = getattr(runner, f'_{name}', None)
            if isinstance(loop, BaseLoop):
                self._patches.set(loop, 'run', self._make_lone_run(loop.run))

    def _make_lone_run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self._knows_end = True
            try:
                return original(*args, **kwargs)
            finally:
                # no hook point follows an error
                self._knows_end = False
                self._end_lone_loop()
                self._guard.clean_up('start', self._patches.close)

        return run

    def after_run(self, runner: Any) -> None:
        self._end_lone_loop()
        # val() and test() leave the train loop as it was; one that joined late, too
        expect_no_train_loop(self)
        self._guard.run('start', self._patches.close)
        self.built_s = monotonic_s()
        if not self._is_disabled:
            self._start_account = self._guard.run(ACCOUNT_SOURCE, self._follow_start)

    def _let_go(self) -> None:
        """Stops measuring and optimising, as this hook will not record training."""
        self._end_optimizations()
        self.end_start()
        probe, self._probe = self._probe, None
        if probe is not None:
            self._guard.clean_up('loader workers', probe.close)

    def _begin(self, runner: Any) -> None:
        # once only: a Runner that trains again passes before_run again
        self._patches.close()
        self._pid = os.getpid()
        if self._probe is None:  # else it calls by the guard that it was opened with
            self._guard = Guard(self._warn_off)
        optimizations = self._provide_optimizations()
        if optimizations is not None:
            optimizations.begin_training(runner)
        start, self._start_account = self._start_account, None
        if start is not None:
            self._guard.clean_up(ACCOUNT_SOURCE, start.leave)
        self._recorder = self._guard.run(
            'start', Recorder, runner, self, self._guard, self._probe, start
        )
        if self._recorder is None:
            self._let_go()
        else:
            self._probe = None
            self._guard.run('start', self._recorder.begin)
        self.end_start()

    def before_train_epoch(self, runner: Any) -> None:
        if self._recorder is not None:
            self._guard.run('epoch', self._recorder.begin_epoch)
        if self._optimizations is not None:
            recorder = self._recorder
            self._optimizations.begin_epoch(
                call_plainly if recorder is None else recorder.book_resume
            )

    # while training is recorded, after_train_iter is an attribute of this very hook, so
    # that a subclass needs no super(). Recorder._make_after_train_iter makes it: it
    # stamps each iteration, and calls Recorder.on_iteration_end where a log line or an
    # interval is due

    def before_val(self, runner: Any) -> None:
        self._begin_lone_loop(runner, 'val_loop')

    def before_test(self, runner: Any) -> None:
        self._begin_lone_loop(runner, 'test_loop')

    def _begin_lone_loop(self, runner: Any, name: str) -> None:
        self._end_lone_loop()
        if self._knows_end and self._recorder is None:
            self._lone_loop = self._guard.run(
                LONE_LOOP_SOURCE, self._open_lone_loop, runner, name
            )

    def _open_lone_loop(self, runner: Any, name: str) -> LoneLoop:
        return LoneLoop(runner, getattr(runner, name, None))

    def before_val_epoch(self, runner: Any) -> None:
        if self._lone_loop is not None:
            self._lone_loop.begin_wait(is_first=True)

    def before_val_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None
    ) -> None:
        if self._lone_loop is not None:
            self._lone_loop.end_wait()

    def after_val_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if self._lone_loop is not None:
            self._lone_loop.begin_wait()

    def after_val_epoch(
        self, runner: Any, metrics: Mapping[str, float] | None = None
    ) -> None:
        if self._lone_loop is not None:
            self._lone_loop.end_wait()

    def after_val(self, runner: Any) -> None:
        self._say_lone_loop(runner, phrase('validation'))

    before_test_epoch, before_test_iter = before_val_epoch, before_val_iter
    after_test_iter, after_test_epoch = after_val_iter, after_val_epoch

    def after_test(self, runner: Any) -> None:
        self._say_lone_loop(runner, phrase('test'))

    def _say_lone_loop(self, runner: Any, loop: Text) -> None:
        lone = self._lone_loop
        if lone is None:
            return
        record = self._guard.run(LONE_LOOP_SOURCE, lone.end)
        self._end_lone_loop()
        said = None if record is None else phrase_validation(record, loop)
        if said is not None:
            runner.logger.info(visible(f'GPUEfficiencyHook: {say(said)}'))

    def _end_lone_loop(self) -> None:
        lone, self._lone_loop = self._lone_loop, None
        if lone is not None:
            self._guard.clean_up(LONE_LOOP_SOURCE, lone.close)

    def _finish(self, error: BaseException | None) -> None:
        self._end_optimizations(is_over=os.getpid() == self._pid)
        recorder, self._recorder = self._recorder, None
        # a child that user code forked ends for itself, and not for the training
        if recorder is None or os.getpid() != self._pid:
            return
        try:
            # it notes what fails as it ends
            path = self._guard.run('end', recorder.finish, error)
            is_wanted = self.summary or self.write_config or self.slurm_comment
            if path is not None and is_wanted and is_main_process():
                self._guard.run('summary', self._sum_up, path, recorder)
        finally:
            recorder.close()

    def _sum_up(self, path: Path, recorder: Recorder) -> None:
        # read back, so that nothing grows in memory while training runs
        run = Run.read(path)
        # by the file, from which another process judges
        is_complete = run.status == 'completed'
        if run.evidence.end is None:
            run = Run(replace(run.evidence, end=recorder.end))
        chosen = self._guard.run('comparison of ranks', choose_rank, path, run)
        # from here on it knows the other ranks
        judged, ranks, run = chosen or (run, None, run)
        diagnosis, advice = diagnose_run(judged), None
        if self.write_config and is_complete and judged.figures.is_enough:
            advice = self._guard.run('recommended config', ask_adviser, path)
        self._guard.run(
            'verdict', self._record_verdict, recorder, judged, diagnosis, advice
        )
        if self.summary:
            self._logger.info(
                render_training_summary(
                    run,
                    diagnosis,
                    ranks,
                    advice,
                    program=_list_words(),
                    judged=judged.meta.rank,
                    arguments=self.command_arguments,
                )
            )

    def _record_verdict(
        self,
        recorder: Recorder,
        judged: Run,
        diagnosis: Diagnosis,
        advice: RunAdvice | None,
    ) -> None:
        # late: a training that begins does without them
        from mmgpu_hooks.adviser.job_comment import comment_on_job
        from mmgpu_hooks.recommend.verdict_record import judge_as_record

        verdict = None if advice is None else advice.verdict
        if verdict is None:
            # no child was asked, as no config was to be written, or it gave no answer
            verdict = judge_as_record(judged, diagnosis, is_final=True)
        recorder.write_verdict(verdict)
        if self.slurm_comment:
            self._guard.run('slurm_comment', comment_on_job, verdict)
        recorder.show_verdict(verdict)


def _find_recording(runner: Any) -> Any:
    """Finds the GPUEfficiencyHook that records a Runner's training, or ``None``."""
    ours = [hook for hook in runner.hooks if isinstance(hook, GPUEfficiencyHook)]
    # the first; one that a script registered itself goes before the one we added
    return min(ours, key=lambda hook: hook.added_by is not None, default=None)


def call_plainly(advance: Callable[[], int]) -> None:
    """Calls a function that skips a resumed training's batches, without timing it."""
    advance()


def _list_words() -> list[str]:
    """Lists this process's command line arguments, as typed after ``python``."""
    spec = getattr(sys.modules.get('__main__'), '__spec__', None)
    if spec is not None and spec.origin == os.path.abspath(''.join(sys.argv[:1])):
        return ['-m', spec.name.removesuffix('.__main__'), *sys.argv[1:]]
    return sys.argv
