"""Changes loader settings during training, and measures each change's gain.

A child process decides and judges, from the evidence. Here the loader is switched, at
the end of an interval or before an epoch. Of several ranks the first one asks, and all
switch at one iteration.

The child has niceness 5: one decision is a second of CPU, most of it imports. So it is
started where training may gain: without workers at once, else once it waits for data or
its cores are in use. A tuned run is judged by what it ended with: ``RecordedRun.meta``
has these settings, and steady intervals begin after the last change.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import structs

from mmgpu_hooks.adviser.process import TuningAdviser
from mmgpu_hooks.hooks.possible_gain import PossibleGain
from mmgpu_hooks.hooks.recording import Recording
from mmgpu_hooks.hooks.shared_room import SharedRoom
from mmgpu_hooks.hooks.sources import count_ranks_on_host
from mmgpu_hooks.hooks.tune_ranks import NEVER, RankAgreement, find_store
from mmgpu_hooks.judge.thresholds import MIN_ITERATIONS
from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.measure.host import read_host_limits
from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.measure.loader.settings import read_length
from mmgpu_hooks.measure.loader.switch import LoaderSwitch
from mmgpu_hooks.measure.memory import read_free_bytes
from mmgpu_hooks.schema.recorded import IntervalRecord, TunedRecord, TunedSettings
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.schema.tuning import TuneAnswer, TuneOffer, TuneQuestion
from mmgpu_hooks.show.tuning import phrase_tuned, phrase_what
from mmgpu_hooks.show.words import say

TUNER_SOURCE = 'tune'
"""Name of the tuner of loader settings, in warnings and the evidence file."""

MOST_CHANGES = 2
"""Maximum number of loader changes in one training, undone ones not counted."""

MOST_WATCHED = 2000
"""Number of iterations without a loader change after which the tuner stops.

A loader that could be faster has shown it by then, and what other programs do later is
not chased."""

FIRST_ITERATIONS, FIRST_S = 5, 0.3
"""Length of log intervals until the loader is changed, in iterations and in seconds.

The longer of both counts. A loader that is slow is to be changed soon."""

SHORT_ITERATIONS, SHORT_S = 10, 0.5
"""Length of log intervals after a change of the loader, as `FIRST_ITERATIONS`.

A run in intervals of 50 iterations would be judged late."""

EARLY = 100
"""Number of iterations since the last loader change for which intervals are short."""

FIRST_ASKED = FIRST_ITERATIONS + MIN_ITERATIONS
"""Number of iterations after which the adviser is first asked.

The first interval, which holds lazy initialisation, is no evidence."""

ASK_AGAIN = 1.3
"""Ratio of iterations since a loader change at two successive requests for advice."""

MOST_CPU = 0.05
"""Largest share of one core that the search for a loader change may take.

Averaged from one question to the next."""

SPARE_BYTES = 2**30
"""Bytes of memory that must stay free while old and new loader workers both live.

Where less is free, the old workers end first."""

NO_SHARED_ROOM = phrase('their batches do not fit into /dev/shm')

_NO_REASON = phrase('no gain was sure enough')
"""Reason to log for unchanged loader settings if the adviser process gave none."""

_PACKAGES = ('mmengine', 'mmdet', 'mmpretrain', 'mmseg', 'mmyolo', 'mmgpu_hooks')
"""Names of packages whose hooks restart workers when they change the data set."""


class LoaderTuner:
    """Base class for tuners of a live DataLoader: records, log lines and roll-backs.

    Args:
        recording: The run; its evidence is open.
        switch: Of the loader.
        write: Adds a record to the evidence.
    """

    def __init__(
        self,
        recording: Recording,
        switch: LoaderSwitch,
        write: Callable[[TunedRecord], None],
    ) -> None:
        self._recording, self._switch, self._write = recording, switch, write
        self._runner = recording.runner
        self._unproven: TunedRecord | None = None
        """Loader change whose new workers are not yet known to start; else ``None``."""

    def _say(self, clause: Text) -> None:
        said = phrase('GPUEfficiencyHook: tune: {clause}.', clause=clause)
        self._runner.logger.info(say(said))

    def _note(self, record: TunedRecord) -> None:
        record = structs.replace(record, iteration=self._recording.iteration)
        self._write(record)
        self._say(phrase_tuned(record))

    def _confirm(self) -> None:
        """Marks the last loader change as working, as its workers delivered batches.

        A start that fails later is not its failure.
        """
        self._switch.confirm()
        self._unproven = None

    def take_back(self, error: Exception) -> bool:
        """Undoes a change of settings with which no loader iterator could be made.

        Args:
            error: What making it raised.

        Returns:
            True if it is worth another try.
        """
        if not self._switch.take_back(error):
            return False
        record, self._unproven = self._unproven, None
        if record is not None:
            with contextlib.suppress(Exception):  # the loader is as it was: that counts
                self._note_failure(record, error)
        return True

    def _write_unloadable(self, record: TunedRecord) -> None:
        """Records that a change failed, if workers cannot load the loader's batches.

        So nobody recommends it of this run.

        Args:
            record: The change, which was not made.
        """
        if self._switch.unloadable is None or self._runner.rank:
            return
        tried = structs.replace(
            record,
            iteration=self._recording.iteration,
            is_within=record.loader == 'train',
        )
        self._write(tried)
        self._write(structs.replace(undo_failed(tried), iteration=tried.iteration))

    def _note_failure(self, record: TunedRecord, error: Exception) -> None:
        """Records that new workers could not start and the old settings stay.

        Args:
            record: The change or roll-back, noted as made, that they were for.
            error: What starting them raised.
        """
        raise NotImplementedError


class Tuner(LoaderTuner):
    """Changes a training's DataLoader settings while it runs, and judges each change.

    Args:
        recording: The run; its evidence is open.
        probe: Watches the train loader.
        switch: Of that loader.
        shorten: Takes the most iterations that an interval may have from now on;
            ``None`` is as ever.
        write: Adds a record to the evidence.
        clock: Monotonic, in seconds.
    """

    def __init__(
        self,
        recording: Recording,
        probe: LoaderProbe,
        switch: LoaderSwitch,
        shorten: Callable[[int | None], None],
        write: Callable[[TunedRecord], None],
        clock: Clock = monotonic_s,
    ) -> None:
        super().__init__(recording, switch, write)
        self._probe, self._shorten, self._clock = probe, shorten, clock
        self._loop = self._runner.train_loop
        self._adviser: TuningAdviser | None = None
        self._put_off: PossibleGain | None = None
        """Tells when the child process is worth starting; ``None`` once it is."""
        self._pending: TunedRecord | None = None
        """Loader change deferred to the next epoch or log interval; else ``None``."""
        self._open: TunedRecord | None = None
        """Newest change of loader settings, until its gain is judged."""
        self._changes = 0
        self._since = recording.recorded
        """Iteration at which loader settings were changed last, or tuning began."""
        self._ask_at = self._since + FIRST_ASKED
        self._is_over = self._has_found = False
        self._asked_s = self._ask_from_s = -math.inf
        """Clock times (s): last request to adviser, earliest next one for a change."""
        self._asked_for_change = False
        """True if the last question to the adviser was for a change, not a verdict."""
        self._why = Text('')
        """Last reason, as a clause, why loader settings are kept; may be empty."""
        self._ranks: RankAgreement | None = None
        """Agreement with other ranks on loader changes; ``None`` with only one rank."""
        self._offered: TuneOffer | None = None
        """Loader change offered to all ranks and not made yet; ``None`` without one."""
        self._offered_at = 0
        """Iteration when this rank first sent or received the pending loader change."""
        self._due_at: int | None = None
        """Iteration at which all ranks change the loader; ``None`` until agreed."""
        self._missed: TunedRecord | None = None
        """Loader change that this rank failed to make, or ``None``."""
        self._length = FIRST_ITERATIONS
        self._shared_room = SharedRoom(self._runner.world_size)

    def begin(self, found: TunedSettings | None = None) -> None:
        """Starts tuning the train loader, or logs the reason why it is not tuned.

        Args:
            found: Settings that the loader was given before, as the run had found that
                is resumed; ``None`` where there are none.

        Raises:
            SourceError: If the child process cannot be started.
        """
        if found is not None:
            self._note_found(found)
        obstacle = self._find_obstacle()
        world, rank = self._runner.world_size, self._runner.rank
        if count_ranks_on_host(world, os.environ) == world > 1:
            # where this rank alone has an obstacle, its answers are no
            self._ranks = RankAgreement(rank, world, find_store())
        if obstacle is not None:
            self._end(phrase('nothing is tuned: {obstacle}', obstacle=obstacle))
            return
        # rank 0 does not see for what another one waits
        if world == 1 and self._switch.settings.num_workers:
            cores = read_host_limits(ranks_on_host=1).usable_cores
            self._put_off = PossibleGain(cores)
        elif rank == 0:
            self._start_adviser()
        self._shorten(FIRST_ITERATIONS)

    def _start_adviser(self) -> None:
        writer = self._recording.writer
        assert writer is not None
        self._put_off, self._why = None, phrase('too few intervals yet')
        self._adviser = TuningAdviser(writer.path, clock=self._clock)

    def _note_found(self, found: TunedSettings) -> None:
        self._has_found = True
        if found == self._switch.settings:
            # its first workers could not be started
            return
        record = TunedRecord(
            iteration=self._recording.recorded,
            action='change',
            reason='found_before',
            old=found,
            new=self._switch.settings,
        )
        self._unproven = record
        self._write(record)
        self._say(phrase_tuned(record))

    def _find_obstacle(self) -> str | None:
        world = self._runner.world_size
        if count_ranks_on_host(world, os.environ) < world:
            return phrase('its ranks are on several hosts')
        if self._recording.writer is None:
            return phrase('no evidence is written')
        if not self._probe.is_watching:
            why = self._probe.unsupported.get('loader workers')
            return why or phrase('it is not watched')
        lengths = [
            getattr(self._loop, f'max_{name}', None) for name in ('iters', 'epochs')
        ]
        if not all(isinstance(length, int) for length in lengths):
            return phrase(
                '{loop} does not say how long it trains', loop=type(self._loop).__name__
            )
        if self._is_last_epoch:
            return phrase('the only epoch is the last one')
        return self._switch.find_obstacle()

    @property
    def _is_by_epoch(self) -> bool:
        return not hasattr(self._loop, 'dataloader_iterator')

    @property
    def _is_last_epoch(self) -> bool:
        return self._is_by_epoch and self._recording.epoch >= self._loop.max_epochs

    def _end(self, clause: Text | None = None) -> None:
        """Stops tuning; the loader keeps its present settings."""
        self._is_over = True
        self._pending = self._put_off = None
        self._shorten(None)
        if self._adviser is not None:
            self._adviser.dismiss()
        if clause is not None:
            self._say(clause)

    def note_batch(self, size: int | None) -> None:
        """Notes a batch's bytes, to estimate the shared memory new workers will need.

        Args:
            size: Bytes of its tensors; ``None`` where they were not counted.
        """
        self._shared_room.note_batch(size)

    def follow(self, record: IntervalRecord) -> None:
        """Asks the advising child process for loader settings, or applies them, if due.

        Args:
            record: Of the interval that ended.

        Raises:
            SourceError: If the child cannot be started, or gives no more answers.
        """
        self._confirm()
        if self._is_over and self._ranks is None:
            return
        done = self._recording.recorded
        self._length = choose_length(record.iter.mean_s, is_first=not self._changes)
        is_early = not self._is_over and done - self._since <= EARLY
        is_short = is_early or self._offered is not None
        self._shorten(self._length if is_short else None)
        if self._ranks is not None:
            self._follow_ranks(self._ranks, done)
        elif self._pending is not None and not self._is_by_epoch:
            pending, self._pending = self._pending, None
            self._change(pending, math.inf)
        if self._is_over:
            return
        if self._put_off is not None:
            self._follow_put_off(self._put_off, record, done)
        if self._adviser is not None:
            self._follow_adviser(self._adviser, done)

    def _follow_put_off(
        self, gain: PossibleGain, record: IntervalRecord, done: int
    ) -> None:
        """Starts the child process once something could be gained."""
        gain.add(record)
        why_not = gain.why_not
        if why_not is None and self._is_last_epoch:
            why_not = phrase('nothing is changed in the last epoch')
        self._why = why_not or Text('')
        if self._has_watched_long(done):
            self._end_watch(done)
        elif why_not is None:
            self._start_adviser()

    def _has_watched_long(self, done: int) -> bool:
        return done - self._since > MOST_WATCHED and self._open is None

    def _end_watch(self, done: int) -> None:
        self._end(
            phrase(
                'nothing more to change after iteration {done}: {why}',
                done=done,
                why=self._why or _NO_REASON,
            )
        )

    def _follow_adviser(self, adviser: TuningAdviser, done: int) -> None:
        """Applies the child process's answer, if any, and asks it again, if due."""
        answer = adviser.read()
        if answer is not None and self._asked_for_change:
            self._why = answer.why
            self._ask_from_s = self._asked_s + answer.cpu_s / MOST_CPU
        is_busy = self._pending is not None or self._offered is not None
        if answer is not None and not is_busy:
            self._act(answer)
        is_busy = self._pending is not None or self._offered is not None
        if self._is_over or not adviser.is_free or is_busy:
            return
        if self._has_watched_long(done):
            self._end_watch(done)
        elif done >= self._ask_at and (
            self._open is not None or self._clock() >= self._ask_from_s
        ):
            self._ask(adviser, done)

    def _ask(self, adviser: TuningAdviser, done: int) -> None:
        so_far = done - self._since
        # while a change is being judged, at each interval
        wait = 0 if self._open is not None else (ASK_AGAIN - 1.0) * so_far
        self._ask_at = done + int(wait)
        question = TuneQuestion(
            iterations_left=max(self._loop.max_iters - done, 0),
            may_persist=may_persist(self._runner),
            can_change=self._changes < MOST_CHANGES and not self._is_last_epoch,
        )
        self._asked_s = self._clock()
        self._asked_for_change = question.can_change and self._open is None
        adviser.ask(question)

    def _act(self, answer: TuneAnswer) -> None:
        if answer.judged is not None and self._open is not None:
            self._take_verdict(answer.judged)
        elif answer.proposed is None or self._open is not None:
            return
        elif not self._is_last_epoch:
            self._change(answer.proposed, answer.cost_s)

    def _take_verdict(self, judged: TunedRecord) -> None:
        self._open = None
        if judged.action == 'keep':
            if self._ranks is not None:
                self._ranks.offer(TuneOffer(record=judged))
            self._note(judged)
            if self._changes >= MOST_CHANGES or judged.reason == 'other_load':
                self._end()
            return
        self._change(judged, math.inf)

    def _change(self, record: TunedRecord, cost_s: float) -> None:
        """Makes a loader change now or between epochs, or offers it to the other ranks.

        Args:
            record: The change.
            cost_s: What it costs, against what it gains in what is left of this epoch;
                infinite where it has to be now.
        """
        if self._ranks is not None:
            self._offer(self._ranks, record, self._recording.recorded)
            return
        live, may_defer = self._find_live(), self._may_defer(record)
        within = self._switch.find_obstacle_within(live, record.new)
        obstacle = None
        if within is None or may_defer:
            # which loads a batch for trial
            obstacle = self._find_obstacle_to(record)
        is_now = within is None and obstacle is None
        if is_now and self._is_by_epoch and math.isfinite(cost_s):
            is_now = self._gain_in_epoch(record) > cost_s
        if is_now:
            salt = self._switch.take_salt(self._recording.iteration)
            self._switch_now(record, live, salt)
        elif obstacle is None and may_defer:
            self._pending = record
        else:
            self._write_unloadable(record)
            self._end(phrase_left(record, obstacle or within))

    def _find_obstacle_to(self, record: TunedRecord) -> Text | None:
        """Returns why a given loader change cannot be made; ``None`` if it can."""
        switch, new = self._switch, record.new
        is_change = record.action == 'change'
        if is_change and not self._shared_room.fits_alone(switch.settings, new):
            return NO_SHARED_ROOM
        return switch.find_obstacle_to(new) or switch.find_first_obstacle(
            new, self._probe.last_index
        )

    def _may_defer(self, record: TunedRecord) -> bool:
        """True if a loader change that is impossible now may be made later."""
        if self._is_by_epoch:
            return not self._is_last_epoch
        # what was refuted must not stay: tried again at each interval's end
        return record.action == 'roll_back'

    def _find_obstacle_now(self, record: TunedRecord) -> Text | None:
        """Returns why this rank cannot change the loader now; ``None`` if it can."""
        if self._is_as_before(record):
            return None
        new = record.new
        within = self._switch.find_obstacle_within(self._find_live(), new)
        # the latter loads a batch for trial
        return within or self._find_obstacle_to(record)

    def _is_as_before(self, record: TunedRecord) -> bool:
        """True if a record undoes a loader change that this rank never made."""
        missed = self._missed
        is_back = record.action == 'roll_back'
        return is_back and missed is not None and record.old == missed.new

    def _is_given_up(self, done: int) -> bool:
        """True if the offered loader change has been tried for too many iterations."""
        return done - self._offered_at > MOST_WATCHED

    def _offer(self, ranks: RankAgreement, record: TunedRecord, since: int) -> None:
        """Offers other ranks, as rank 0, a loader change; says if rank 0 can make it.

        Args:
            ranks: The agreement.
            record: The change, or the roll-back of one.
            since: Iteration at which it was offered first.
        """
        # first: where it fails, nothing has been offered
        can_change = self._find_obstacle_now(record) is None
        # for an iteration that none has reached
        salt = self._switch.take_salt(self._recording.recorded)
        self._offered = TuneOffer(record=record, salt=salt)
        self._offered_at = since
        ranks.offer(self._offered)
        ranks.answer(can_change=can_change)
        self._shorten(self._length)

    def _follow_ranks(self, ranks: RankAgreement, done: int) -> None:
        """Answers rank 0's offer of a loader change; makes it if all ranks agreed.

        Also where tuning is over on this rank: a roll-back needs all answers.
        """
        offer = self._offered
        if offer is None:
            if ranks.rank:
                self._take_offer(ranks, done)
            return
        if self._due_at is None:
            self._due_at = (
                ranks.read_decision()
                if ranks.rank
                else self._decide(ranks, offer, done)
            )
        if self._due_at is None:
            if ranks.rank and done - self._offered_at > 2 * MOST_WATCHED:
                # rank 0, which gives up after half of that, tunes no more
                self._offered = None
                self._end(phrase('rank 0 made no decision'))
            return
        if self._due_at == NEVER:
            self._offered = self._due_at = None
            self._leave_offer(ranks, offer, done)
        elif done < self._due_at:
            # an interval ends there, on every rank
            self._shorten(min(self._length, self._due_at - done))
        else:
            self._make_offered(offer, done)

    def _take_offer(self, ranks: RankAgreement, done: int) -> None:
        offer = ranks.look()
        if offer is None:
            return
        record = offer.record
        if self._is_over and not self._is_as_before(record):
            ranks.answer(can_change=False)
        elif record.action == 'keep':
            self._open = None
            self._note(record)
        else:
            self._offered, self._offered_at = offer, done
            ranks.answer(can_change=self._find_obstacle_now(record) is None)
            self._shorten(self._length)

    def _leave_offer(self, ranks: RankAgreement, offer: TuneOffer, done: int) -> None:
        """Ends tuning, or re-offers a roll-back, as a rank cannot change its loader."""
        if offer.record.action == 'change' or self._is_given_up(done):
            refusing = ranks.find_refusing()
            if refusing is not None:
                why = phrase(
                    'rank {rank} cannot make the change, so none does', rank=refusing
                )
            elif ranks.read_answers():
                why = phrase('what is left is too short to pay for a change')
            else:
                why = phrase('the ranks did not agree in time')
            self._write_unloadable(offer.record)
            self._end(phrase_left(offer.record, why))
        elif not ranks.rank:
            self._offer(ranks, offer.record, self._offered_at)

    def _make_offered(self, offer: TuneOffer, done: int) -> None:
        """Makes the loader change all ranks agreed on, as soon as this rank can."""
        record = offer.record
        obstacle = self._find_obstacle_now(record)
        if obstacle is not None and not self._is_given_up(done):
            # a later iteration keeps the order of samples as well
            return
        self._offered = self._due_at = None
        if obstacle is not None:
            self._fail(record, phrase_left(record, obstacle))
        elif not self._is_as_before(record):
            self._switch_now(record, self._find_live(), offer.salt)

    def _decide(self, ranks: RankAgreement, offer: TuneOffer, done: int) -> int | None:
        """Chooses, as rank 0, when all ranks change loader settings, if all can.

        Returns:
            The iteration, or `NEVER`; ``None`` while a rank has not answered.
        """
        can_all = ranks.read_answers()
        if can_all is None and not self._is_given_up(done):
            return None
        # the others look at the end of an interval
        at = done + 3 * self._length
        batches = read_length(self._runner.train_dataloader) or 0
        last = self._loop.max_iters - (batches if self._is_by_epoch else 0)
        is_late = at >= last and offer.record.action == 'change'
        due_at = at if can_all and not is_late else NEVER
        ranks.decide(due_at)
        return due_at

    def _gain_in_epoch(self, record: TunedRecord) -> float:
        """Returns the least seconds a loader change saves in the rest of the epoch."""
        recording = self._recording
        batches = read_length(self._runner.train_dataloader) or 0
        left = batches - (recording.iteration - recording.epoch_start)
        share: float = (record.gain_low_pct or 0.0) / 100
        return share * (record.iter_s or 0.0) * float(max(left, 0))

    def _find_live(self) -> Any:
        endless = getattr(self._loop, 'dataloader_iterator', None)
        if endless is not None:
            return getattr(endless, '_iterator', None)
        living = [
            iterator
            for iterator in self._probe.list_living()
            if not self._switch.is_passed_on(iterator)
        ]
        # of several, one is a user's own
        return living[0] if len(living) == 1 else None

    def _switch_now(self, record: TunedRecord, live: Any, salt: int) -> None:
        record = structs.replace(record, is_within=True)
        began_s = self._clock()
        try:
            self._switch.switch_within(
                live,
                record.new,
                salt,
                holder=getattr(self._loop, 'dataloader_iterator', None),
                is_drained_first=not self._has_room(record.new),
                on_failure=partial(
                    self._recording.guard.clean_up,
                    TUNER_SOURCE,
                    self._note_failure,
                    record,
                ),
            )
        except Exception as error:  # noqa: BLE001, training goes on as it was
            self._refuse(record, error)
            return
        took_s = self._clock() - began_s
        self._begin_stage(structs.replace(record, switch_s=took_s))

    def _has_room(self, new: TunedSettings) -> bool:
        """True if memory is enough for new loader workers next to the old ones."""
        free, old = read_free_bytes(), self._switch.settings.num_workers
        own = self._worker_bytes
        if old and not self._shared_room.fits_beside(new):
            return False
        if free is None or not old or not own:
            return True
        return free - SPARE_BYTES > new.num_workers * own / old

    @property
    def _worker_bytes(self) -> int | None:
        processes = self._probe.processes
        return None if processes is None else processes.read_pss_bytes().pss_bytes

    def _begin_stage(self, record: TunedRecord) -> None:
        """Records a change of loader settings that was made, and watches its effect."""
        self._note(record)
        done = self._recording.iteration
        self._since = self._ask_at = done
        if record.action == 'change':
            self._changes += 1
            self._open = record
            self._shorten(SHORT_ITERATIONS)
        else:
            self._end()

    def _refuse(self, record: TunedRecord, error: Exception) -> None:
        self._fail(
            record,
            phrase(
                '{what} was not possible ({kind}: {reason})',
                what=phrase_what(record),
                kind=type(error).__name__,
                reason=' '.join(str(error).split()),
            ),
        )

    def _fail(self, record: TunedRecord, clause: Text) -> None:
        """Stops tuning after a failed loader change; rank 0 has other ranks undo it."""
        self._end(clause)
        if record.action != 'change':
            return
        self._missed = record
        if self._due_at is not None:
            # the roll-back is agreed on
            return
        if self._ranks is not None and not self._ranks.rank:
            if self._offered is not None:
                self._ranks.decide(NEVER)
            # nobody judges it on the others any more
            self._offer(self._ranks, undo_failed(record), self._recording.recorded)

    def _note_failure(self, record: TunedRecord, error: Exception) -> None:
        self._open = None
        self._note(structs.replace(undo_failed(record), new=self._switch.settings))
        if record.reason == 'found_before':
            # the training goes on as its config has it, and may be tuned
            return
        self._fail(
            record,
            phrase(
                'no other workers could be started ({kind})', kind=type(error).__name__
            ),
        )

    def begin_epoch(self) -> None:
        """Makes the change of loader settings that was deferred to the epoch start."""
        record, self._pending = self._pending, None
        if record is None or self._is_over:
            return
        if record.action == 'change' and self._is_last_epoch:
            self._end(phrase('nothing is changed in the last epoch'))
            return
        salt = self._switch.take_salt(self._recording.iteration)
        began_s = self._clock()
        try:
            self._switch.switch_between(record.new, salt)
        except Exception as error:  # noqa: BLE001, training goes on as it was
            self._refuse(record, error)
            return
        self._unproven = record
        took_s = self._clock() - began_s
        self._begin_stage(structs.replace(record, switch_s=took_s))

    def note_end(self) -> None:
        """Logs at training's end why loader settings never changed, if not yet said."""
        is_silent = not (self._is_over or self._changes or self._has_found)
        is_idle = self._pending is None and self._offered is None
        has_looked = self._adviser is not None or self._put_off is not None
        if has_looked and is_silent and is_idle:
            why = self._why or _NO_REASON
            self._say(phrase('nothing was changed: {why}', why=why))

    def close(self) -> None:
        """Ends tuning of the loader, and the child process that judges changes."""
        # an interval still ends after the last iteration
        self._is_over, self._ranks = True, None
        adviser, self._adviser = self._adviser, None
        if adviser is not None:
            adviser.end()


def may_persist(runner: Any) -> bool:
    """True if persistent workers are safe, as all hooks come from known packages.

    Args:
        runner: With its hooks.
    """
    packages = {type(hook).__module__.partition('.')[0] for hook in runner.hooks}
    return packages <= {*_PACKAGES}


def undo_failed(record: TunedRecord) -> TunedRecord:
    """Returns the roll-back record of a failed change of loader settings."""
    return TunedRecord(
        iteration=0,
        action='roll_back',
        reason='failed',
        loader=record.loader,
        old=record.new,
        new=record.old,
        is_within=record.is_within,
    )


def phrase_left(record: TunedRecord, obstacle: Text | None) -> Text:
    """Phrases a loader change that would be next, and why it is not done."""
    return phrase(
        '{what} would be next and is not done: {obstacle}',
        what=phrase_what(record),
        obstacle=obstacle,
    )


def choose_length(iter_s: float, *, is_first: bool) -> int:
    """Chooses how many iterations a log interval has while the loader is tuned.

    Args:
        iter_s: Mean seconds of an iteration.
        is_first: True until the loader is changed for the first time.
    """
    least, least_s = (
        (FIRST_ITERATIONS, FIRST_S) if is_first else (SHORT_ITERATIONS, SHORT_S)
    )
    return max(least, math.ceil(least_s / max(iter_s, 1e-3)))
