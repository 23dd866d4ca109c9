"""Renders the answer of ``mmgpu recommend`` as text and as JSON.

Keys:
    run (str): The evidence file.
    status (str): How the run ended: ``completed``, ``interrupted``, ``failed``, or
        ``killed`` (no end record: it was killed, or still trains).
    verdict (Verdict): Where the time goes.
    ranks (RanksSummary | None): The ranks side by side; ``None`` for one rank.
    findings (Tuple[Finding]): Worst first.
    changes (Tuple[Change]): Settings to change.
    no_change_reason (str | None): Why ``changes`` is empty.
    checkpoint_saves (Tuple[SaveJudgement]): One per save: the fields of a ``save`` line
        of [the evidence](evidence.md#save) (``iteration``, ``wall_s``, ``cpu_s``,
        ``run_delay_s``, ``blocked_s``, ``bytes``, ``workers_busy``, ``phases`` and
        others), and what is judged of it.
    save_cures (Tuple[SaveCure]): What would make saves cost less.
    advice (Tuple[str]): Sentences about what else would help; never applied.
    evidence (EvidenceCounts): How much it rests on.
    config (str | None): The file that was rewritten.
    output (str | None): The file that was written; ``None`` where none was.
    backup (str | None): The original, where it was kept.
    diff (str): Unified diff.
    train_command (str | None): How to train with the new config.
    cfg_options (str | None): How to train the original with the same settings.
    error (str | None): Why the rewrite was refused (exit code 2).
    notes (Tuple[str]): Sentences for the reader.
    validation (ValidationOutlook): Only for a run with validations; ``gain_s`` is of
        the changes of ``val_dataloader``, and its interval, in per cent, stands in the
        sentence.
    mended_start (MendedStart): Only where ``srun`` bound the training to less than
        SLURM gave it, without ``--cores``.
    host_overhead (HostOverhead): Only where it is worth a line.
    next_job (NextJob): Only where the run was a SLURM job, without ``--cores``.
    ending (TrainingEnd): Only where the run did not come to its end and its length is
        known.
    saved_hours (Tuple[SavedHours]): Only where something is predicted to be saved.
    fitted_runs (Mapping[str, int | None]): Only with several runs: batch size by
        evidence file, the newest first.
    batch_size (Tuple[str]): Only with ``--allow-batch-size``: what was decided of it,
        in sentences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace

from msgspec import structs

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.answer import Answer
from mmgpu_hooks.recommend.hours import FAST_METRIC_KEY
from mmgpu_hooks.recommend.pairs import pair_settings
from mmgpu_hooks.recommend.settings import SETTINGS
from mmgpu_hooks.recommend.validation import VALIDATION_KEY
from mmgpu_hooks.schema.figures import format_seconds
from mmgpu_hooks.schema.judged import (
    Change,
    HostOverhead,
    HostSaving,
    SavedHours,
    Verdict,
)
from mmgpu_hooks.schema.text import Text, listed, phrase, quoted, sentences
from mmgpu_hooks.show.document import (
    BLANK,
    Fact,
    Section,
    Table,
    align,
    to_json,
    with_facts,
)
from mmgpu_hooks.show.ending import phrase_ending, phrase_limit
from mmgpu_hooks.show.terminal import render
from mmgpu_hooks.show.text import shell_path

MOST_LINES = 25
"""Maximum number of lines that ``mmgpu recommend`` prints without ``--details``."""

_LEAST_HOURS = 0.05
"""Smallest number of saved hours that ``mmgpu recommend`` mentions: three minutes."""


def render_json(answer: Answer) -> str:
    """Encodes ``mmgpu recommend``'s answer as JSON; its keys are documented."""
    found, run = answer.recommendation, answer.summary
    # of what was asked for only, and of what there was
    optional = {
        'fitted_runs': answer.fitted,
        'batch_size': found.batch_size,
        'validation': found.validation,
        'host_overhead': found.host_overhead,
        'mended_start': answer.mended,
        'next_job': answer.next_job,
        'ending': answer.ending,
        'saved_hours': answer.saved_hours,
    }
    return to_json(
        run=answer.run_path,
        status=run.status,
        verdict=answer.diagnosis.verdict,
        findings=answer.diagnosis.findings,
        changes=found.changes,
        no_change_reason=found.reason,
        checkpoint_saves=[
            with_facts({**structs.asdict(save), **asdict(judgement)})
            for save, judgement in zip(run.save_records, answer.diagnosis.saves)
        ],
        save_cures=found.save_cures,
        advice=found.advice,
        evidence=answer.diagnosis.counts,
        config=answer.config,
        output=answer.output,
        backup=answer.backup,
        diff=answer.diff,
        train_command=_train_command(answer),
        ranks=answer.ranks,
        cfg_options=answer.cfg_options,
        error=answer.error,
        notes=answer.notes,
        **{key: value for key, value in optional.items() if value},
    )


def describe_answer(answer: Answer) -> list[Section]:
    """Makes ``mmgpu recommend``'s terminal sections: verdict, settings, diff, commands.

    It has :data:`MOST_LINES` at most, as far as the changes themselves allow it; for
    more see :func:`mmgpu_hooks.show.run_sections.describe_details`.
    """
    found, notes = answer.recommendation, answer.notes
    findings, advice = len(answer.diagnosis.findings), len(found.advice)
    counts = (
        (findings, phrase('findings: {count}', count=findings)),
        (advice, phrase('advice: {count}', count=advice)),
        (len(notes), phrase('notes: {count}', count=len(notes))),
    )
    more = listed(counted for count, counted in counts if count)
    ranks = answer.ranks
    slow = ranks.why if ranks is not None and ranks.slowest is not None else BLANK
    settings = BLANK if found.changes else describe_settings(answer.summary)
    verdict = describe_verdict(answer)
    # its detail is under --details alone
    memory = [f.detail for f in answer.diagnosis.findings if f.code == 'MG410']
    said = *verdict.sentences, slow, settings, *memory
    verdict = replace(verdict, sentences=list(filter(None, said)))
    facts = [Fact(phrase('Note    '), note) for note in notes[:3]]
    why = answer.diagnosis.verdict.why
    # what the verdict says already is not said again
    more_advice = [said for said in found.advice if said.facts.get('detail') != why]
    facts += [Fact(phrase('Also    '), said) for said in more_advice[:1]]
    changes = [
        describe_changes(answer),
        *describe_mended(answer),
        *describe_host_overhead(answer),
    ]
    behind = [*describe_hours(answer), *describe_next_job(answer)]
    while True:
        last = Section(facts=facts, code=list_commands(answer, more=more))
        sections = [verdict, *changes, last, *behind]
        if not facts or len(render(sections).splitlines()) <= MOST_LINES:
            return sections
        if ranks is not None and len(facts) == 1 and not found.batch_size:
            # which rank is judged comes before the reason
            changes[0] = replace(changes[0], facts=())
            return [verdict, *changes, last, *behind]
        facts.pop()


def describe_verdict(answer: Answer) -> Section:
    """Makes the section with the verdict, its confidence and its reason."""
    verdict = answer.diagnosis.verdict
    return Section(title_verdict(verdict), 'verdict', [verdict.why])


def title_verdict(verdict: Verdict) -> Text:
    """Phrases a verdict and its confidence: ``Data-bound (high confidence)``."""
    if verdict.confidence == 'high':
        return phrase('{title} (high confidence)', verdict)
    if verdict.confidence == 'medium':
        return phrase('{title} (medium confidence)', verdict)
    return phrase('{title} (low confidence)', verdict)


def describe_changes(
    answer: Answer, title: Text = BLANK, *, every: bool = False
) -> Section:
    """Makes the section of old and new settings, their predicted gain, and the diff.

    Args:
        answer: What to say.
        title: Of the section.
        every: Whether the reason of each change is given, not of the first alone.
    """
    found = answer.recommendation
    changes = found.changes
    if not changes:
        nothing = sentences(phrase('Nothing to change.'), found.reason)
        said = [nothing, *found.batch_size]
        return Section(title, 'changes', said)
    rows: list[tuple[str, str, str, str]] = [
        (_name(change), _value_of(change.old), _value_of(change.new), '')
        for change in changes
    ]
    rows += _gains(answer, answer.summary)
    head = [BLANK, phrase('now'), phrase('recommended'), phrase('9 times in 10')]
    table = Table(head, rows, phrase('Both settings'))
    why = found.batch_size or [changes[0].reason]
    facts = [
        Fact(BLANK if number else phrase('Why'), sentence)
        for number, sentence in enumerate(why)
    ]
    if every:
        # changes that follow from one another have one reason
        reasons: dict[Text, list[Text]] = {}
        for change in changes:
            reasons.setdefault(change.reason, []).append(_name(change))
        facts = [Fact(phrase('Why'), sentence) for sentence in found.batch_size]
        facts += [Fact(listed(names), reason) for reason, names in reasons.items()]
    code = [line for line in answer.diff.splitlines() if line[:1] in '+-@']
    return Section(title, 'changes', facts=facts, table=table, code='\n'.join(code))


def describe_mended(answer: Answer) -> list[Section]:
    """Describes the gain if ``srun`` gave a task all its CPUs; empty if it did."""
    found, run = answer.mended, answer.summary
    if found is None:
        return []
    changed = [
        phrase(
            '{name} {old} -> {new}',
            name=_name(change),
            old=_value_of(change.old),
            new=_value_of(change.new),
        )
        for change in found.changes
    ]
    iteration = phrase(
        '{then_s} (predicted), now {now_s}',
        then_s=found.predicted_iter_s,
        now_s=run.figures.iter_s,
    )
    folder = shell_path(run.meta.work_dir) or 'RUN_FOLDER'
    lines = {
        phrase('Start'): f'{found.command} ...',
        phrase('Settings'): listed(changed) or phrase('as they are'),
        phrase('Iteration'): iteration,
        phrase('Write'): f'mmgpu recommend {folder} --cores {found.cores:g}',
    }
    title = phrase('With a mended start: {cores:g} usable cores (MG117)', found)
    return [Section(title, 'mended-start', code=align(lines))]


def _phrase_alone(gain_pct: float) -> Text:
    """Phrases the time (%) that less host work saves if no other program runs."""
    if gain_pct < 0.05:
        return phrase('Nothing less without the other programs on this host.')
    return phrase(
        '{alone_pct:.1f} % less without the other programs on this host.',
        alone_pct=gain_pct,
    )


def describe_host_overhead(answer: Answer, *, every: bool = False) -> list[Section]:
    """Describes the host time that the hook's ``optimize`` saves; empty if too little.

    Args:
        answer: What to say.
        every: True if what was counted is said of each.
    """
    found = answer.recommendation.host_overhead
    if found is None:
        return []
    rows = list[tuple[str, ...]]()
    for saving in found.savings:
        host: str = format_seconds(saving.host_s)
        left = saving.optimized_host_s
        if saving.most_saved_s is not None:
            host = phrase('up to {most_saved_s}', saving)
        rows.append(
            (
                saving.name,
                host,
                '' if left is None else format_seconds(left),
                *_phrase_iteration(saving),
            )
        )
    measured = [saving for saving in found.savings if saving.most_saved_s is None]
    if len(measured) > 1:
        name = phrase('those measured')
        if len(measured) == len(rows):
            name = phrase('all of these')
        rows.append((name, '', '', *_phrase_iteration(found)))
    head = [
        quoted('optimize'),
        phrase('host CPU'),
        phrase('then'),
        phrase('iteration'),
        phrase('9 times in 10'),
    ]
    facts = [
        Fact(quoted(saving.name), phrase('{found}.', saving))
        for saving in found.savings
        if every
    ]
    alone, low = found.predicted_gain_alone_pct, found.predicted_gain_low_pct
    if alone is not None and low is not None and alone < low:
        facts.append(Fact(phrase('Alone'), _phrase_alone(alone)))
    lines = {
        phrase('Switch on'): found.switch_on,
        phrase('Measure'): found.measure,
    }
    return [
        Section(
            phrase('Host overhead that optimize takes off, all bits the same'),
            'host-overhead',
            facts=facts,
            table=Table(head, rows),
            code=align(lines),
        )
    ]


def _phrase_iteration(found: HostSaving | HostOverhead) -> tuple[str, str]:
    """Phrases predicted seconds per iteration, and per cent saved with interval."""
    gain = found.predicted_gain_pct
    low, high = found.predicted_gain_low_pct, found.predicted_gain_high_pct
    if gain is None or low is None or high is None:
        return '', ''
    less = phrase(
        '{gain_pct:.1f} % less ({low_pct:.1f} to {high_pct:.1f} %)',
        gain_pct=gain,
        low_pct=low,
        high_pct=high,
    )
    return format_seconds(found.predicted_iter_s), less


def describe_hours(answer: Answer) -> list[Section]:
    """Describes when a running training ends, and the hours that changes save."""
    facts = [Fact(phrase('End     '), _phrase_end(answer))]
    for saved in answer.saved_hours:
        if max(saved.whole, saved.rest or 0.0) >= _LEAST_HOURS:
            facts.append(Fact(phrase('Hours   '), _phrase_saved(saved)))
    said = [fact for fact in facts if fact.value is not None]
    return [Section(facts=said)] if said else []


def _phrase_saved(saved: SavedHours) -> Text:
    """Phrases hours that changes save: of a complete run, and from now to its end."""
    names = listed(map(_name_key, saved.keys))
    if saved.keys == (FAST_METRIC_KEY,):
        names = quoted('FastCocoMetric (MG501)')
    if saved.rest is None:
        return phrase(
            '{names}: {whole_hours} off a whole run',
            whole_hours=saved.whole,
            names=names,
        )
    return phrase(
        '{names}: {whole_hours} off a whole run, {left_hours} off what is left',
        whole_hours=saved.whole,
        left_hours=saved.rest,
        names=names,
    )


def _phrase_end(answer: Answer) -> Text | None:
    """Phrases when a running training ends, or the hours that a stopped one lacked."""
    ending = answer.ending
    if ending is None:
        return None
    now, end = answer.last_sign, answer.job_end
    if now is not None:
        ends = phrase_ending(ending, now)
        if end is None:
            return ends
        limit = phrase_limit(end.limit, end.moment, now)
        return phrase('{ends}. {limit}', ends=ends, limit=limit)
    return phrase(
        '{left_hours} were left ({low_hours} to {high_hours})',
        left_hours=ending.hours_left,
        low_hours=ending.hours_left_low,
        high_hours=ending.hours_left_high,
    )


def describe_next_job(answer: Answer) -> list[Section]:
    """Describes the CPUs to ask SLURM for in the next job; empty without SLURM."""
    found = answer.next_job
    if found is None:
        return []
    cpus, now_s = found.cpus_per_task, answer.summary.figures.iter_s
    given: Text | None = None
    if found.asked_cpus is not None and found.used_cores is not None:
        given = phrase(
            'asked for {asked_cpus:d}, used {used_cores:.1f} on average', found
        )
    elif found.asked_cpus is not None:
        given = phrase('asked for {asked_cpus:d}', found)
    elif found.used_cores is not None:
        given = phrase('used {used_cores:.1f} on average', found)
    iteration = phrase(
        '{then_s} with num_workers={num_workers:d} (predicted), now {now_s}',
        found,
        then_s=found.predicted_iter_s,
        now_s=now_s,
    )
    train = f'CPUS_PER_TASK={cpus} tools/slurm_train.sh ...'
    lines = {
        phrase('Ask for'): f'#SBATCH --cpus-per-task={cpus}',
        phrase('Or'): f'{train}, mim train ... -c {cpus}',
        phrase('Iteration'): iteration,
        phrase('This job'): given,
    }
    title = phrase('The next job: {cpus} for each task', cpus=cpus)
    return [Section(title, 'next-job', code=align(lines))]


def _name(change: Change) -> Text:
    return _name_key(change.key)


def _name_key(key: str) -> Text:
    """Returns the last part of a config key, marked if of ``val_dataloader``."""
    short = key.rpartition('.')[2]
    if key.startswith(VALIDATION_KEY):
        return phrase('val {setting}', setting=short)
    return quoted(short)


def _value_of(value: object) -> Text:
    """Formats a setting's value as text; ``None`` becomes ``not set``."""
    return phrase('not set') if value is None else quoted(str(value))


def _gains(answer: Answer, run: Run) -> Iterator[tuple[str, str, str, str]]:
    """Yields table rows on the predicted saving by all changes together.

    Those of validation's loader have a row of their own.
    """
    found, validation = answer.recommendation, answer.recommendation.validation
    # each predicted change has the figures of all together
    change = next((c for c in found.changes if c.predicted_gain_pct is not None), None)
    gain_s = validation.gain_s if validation else None
    run_gain_pct = validation.run_gain_pct if validation else None
    if change is not None:
        if change.predicted_iter_s:
            then = format_seconds(change.predicted_iter_s)
            now = format_seconds(run.figures.iter_s)
            yield phrase('iteration'), now, then, ''
        gain, now, then = change.predicted_gain_pct, '', ''
        assert gain is not None  # as it was chosen by
        low, high = change.predicted_gain_low_pct, change.predicted_gain_high_pct
        if run.status == 'completed':
            now = format_seconds(run.figures.duration_s)
            then = format_seconds(run.figures.duration_s * (1 - gain / 100))
        name = phrase('training (train loader)') if gain_s else phrase('whole training')
        less = phrase(
            '{gain_pct:.1f} % less ({low_pct:.1f} to {high_pct:.1f} %)',
            gain_pct=gain,
            low_pct=low,
            high_pct=high,
        )
        if gain < 0.0 and low is not None and high is not None:
            less = phrase(
                '{loss_pct:.1f} % more ({low_pct:.1f} to {high_pct:.1f} %)',
                loss_pct=-gain,
                low_pct=-high,
                high_pct=-low,
            )
        yield name, now, then, less
    if validation and validation.loop_s and gain_s and run_gain_pct is not None:
        less = phrase('{run_gain_pct:.1f} % of the run less', run_gain_pct=run_gain_pct)
        now = format_seconds(validation.loop_s)
        then = format_seconds(validation.loop_s - gain_s)
        yield phrase('a validation'), now, then, less


def _train_command(answer: Answer) -> str | None:
    output = shell_path(answer.output)
    return output and f'python tools/train.py {output}'


def list_commands(answer: Answer, *, details: bool = False, more: Text = BLANK) -> str:
    """Returns lines that name the written config and the commands to run next.

    Args:
        answer: What is said.
        details: True for every command.
        more: What else there is to read; empty if it is all there.
    """
    folder = None
    # it trains, and neither validates nor saves
    if answer.output and pair_settings(answer.summary, answer.recommendation):
        folder = shell_path(answer.summary.meta.work_dir)
    kept = phrase('{backup} (what was there)', answer) if answer.backup else None
    lines = {
        phrase('Written'): answer.output,
        phrase('Kept'): kept,
        phrase('Or once'): answer.cfg_options if details else None,
        phrase('Train'): _train_command(answer) if details else None,
        phrase('Measure'): f'mmgpu verify {folder}' if folder else None,
        phrase('More'): phrase('--details ({more})', more=more) if more else None,
    }
    return align(lines)


def describe_settings(run: Run) -> Text:
    """Phrases the train loader's settings: ``batch_size=4, num_workers=2, ...``."""
    loader = run.meta.loader
    if loader.num_workers is None:
        why = run.figures.unknown.get('loader inside')
        if why is None:
            return phrase('Settings unknown: they were not recorded.')
        return phrase('Settings unknown: {reason}.', reason=why)
    values = {
        setting.name: setting.read(run)
        for setting in SETTINGS
        # what only workers have rests without them
        if setting.is_of_loader and (loader.num_workers or setting.resting is ...)
    }
    return phrase(
        '{settings}.',
        settings=tuple(f'{name}={value}' for name, value in values.items()),
    )
