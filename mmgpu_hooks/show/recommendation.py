"""The answer of ``mmgpu recommend``, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace

from msgspec import structs

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.answer import Answer
from mmgpu_hooks.recommend.hours import FAST_METRIC_KEY
from mmgpu_hooks.recommend.pairs import pair_settings
from mmgpu_hooks.recommend.settings import SETTINGS
from mmgpu_hooks.recommend.validation import VALIDATION_KEY
from mmgpu_hooks.schema.figures import format_seconds, plural
from mmgpu_hooks.schema.judged import Change, HostOverhead, HostSaving, SavedHours
from mmgpu_hooks.show.document import Fact, Section, Table, to_json
from mmgpu_hooks.show.ending import format_hours, phrase_ending, phrase_limit
from mmgpu_hooks.show.terminal import render
from mmgpu_hooks.show.text import shell_path

MOST_LINES = 25
"""Lines of an answer without details."""

_LEAST_HOURS = 0.05
"""Three minutes: less is not worth a line."""


def render_json(answer: Answer) -> str:
    """The answer with stable keys; ``docs/en/recommend.md`` documents them."""
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
            {**structs.asdict(save), **asdict(judgement)}
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
    """The answer for a terminal: verdict, both settings, diff, what to type next.

    It has :data:`MOST_LINES` at most, as far as the changes themselves allow it; for
    more see :func:`mmgpu_hooks.show.run_sections.describe_details`.
    """
    found, notes = answer.recommendation, answer.notes
    counts = {'findings': len(answer.diagnosis.findings), 'advice': len(found.advice)}
    counts['notes'] = len(notes)
    more = ', '.join(f'{name}: {count}' for name, count in counts.items() if count)
    ranks = answer.ranks
    slow = ranks.why if ranks is not None and ranks.slowest is not None else ''
    settings = '' if found.changes else describe_settings(answer.summary)
    verdict = describe_verdict(answer)
    # its detail is under --details alone
    memory = [f.detail for f in answer.diagnosis.findings if f.code == 'MG410']
    said = *verdict.sentences, slow, settings, *memory
    verdict = replace(verdict, sentences=list(filter(None, said)))
    facts = [Fact('Note    ', note) for note in notes[:3]]
    facts += [Fact('Also    ', advice) for advice in found.advice[:1]]
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
    """The verdict, how sure it is, and why."""
    verdict = answer.diagnosis.verdict
    name, _, why = verdict.sentence.partition(': ')
    title = f'{name} ({verdict.confidence} confidence)'
    return Section(title, 'verdict', [sentence_of(why)] if why else [])


def describe_changes(
    answer: Answer, title: str = '', *, every: bool = False
) -> Section:
    """Both settings side by side, what the change gives, the diff.

    Args:
        answer: What to say.
        title: Of the section.
        every: Whether the reason of each change is given, not of the first alone.
    """
    found = answer.recommendation
    changes = found.changes
    if not changes:
        said = [f'Nothing to change. {found.reason or ""}'.rstrip(), *found.batch_size]
        return Section(title, 'changes', said)
    rows = [
        (_name(change), _value_of(change.old), _value_of(change.new), '')
        for change in changes
    ]
    rows += _gains(answer, answer.summary)
    table = Table(['', 'now', 'recommended', '9 times in 10'], rows, 'Both settings')
    why = found.batch_size or [sentence_of(changes[0].reason)]
    facts = [
        Fact('' if number else 'Why', sentence) for number, sentence in enumerate(why)
    ]
    if every:
        # changes that follow from one another have one reason
        reasons: dict[str, list[str]] = {}
        for change in changes:
            reasons.setdefault(change.reason, []).append(_name(change))
        facts = [Fact('Why', sentence) for sentence in found.batch_size]
        facts += [
            Fact(', '.join(names), sentence_of(reason))
            for reason, names in reasons.items()
        ]
    code = [line for line in answer.diff.splitlines() if line[:1] in '+-@']
    return Section(title, 'changes', facts=facts, table=table, code='\n'.join(code))


def describe_mended(answer: Answer) -> list[Section]:
    """What a start gives that srun does not narrow; nothing where none was."""
    found, run = answer.mended, answer.summary
    if found is None:
        return []
    changed = [
        f'{_name(change)} {_value_of(change.old)} -> {_value_of(change.new)}'
        for change in found.changes
    ]
    then = format_seconds(found.predicted_iter_s)
    folder = shell_path(run.meta.work_dir) or 'RUN_FOLDER'
    lines = {
        'Start': f'{found.command} ...',
        'Settings': ', '.join(changed) or 'as they are',
        'Iteration': f'{then} (predicted), now {format_seconds(run.figures.iter_s)}',
        'Write': f'mmgpu recommend {folder} --cores {found.cores:g}',
    }
    title = f'With a mended start: {found.cores:g} usable cores (MG117)'
    return [Section(title, 'mended-start', code=_align(lines))]


def describe_host_overhead(answer: Answer, *, every: bool = False) -> list[Section]:
    """What ``optimize`` takes off, and what to type; nothing where it is not worth it.

    Args:
        answer: What to say.
        every: True if what was counted is said of each.
    """
    found = answer.recommendation.host_overhead
    if found is None:
        return []
    rows = []
    for saving in found.savings:
        host, left = format_seconds(saving.host_s), saving.optimized_host_s
        if saving.most_saved_s is not None:
            host = f'up to {format_seconds(saving.most_saved_s)}'
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
        name = 'all of these' if len(measured) == len(rows) else 'those measured'
        rows.append((name, '', '', *_phrase_iteration(found)))
    head = ['optimize', 'host CPU', 'then', 'iteration', '9 times in 10']
    facts = [
        Fact(saving.name, sentence_of(saving.found))
        for saving in found.savings
        if every
    ]
    return [
        Section(
            'Host overhead that optimize takes off, all bits the same',
            'host-overhead',
            facts=facts,
            table=Table(head, rows),
            code=_align({'Switch on': found.switch_on, 'Measure': found.measure}),
        )
    ]


def _phrase_iteration(found: HostSaving | HostOverhead) -> tuple[str, str]:
    """The predicted iteration, and what is saved with its interval."""
    gain = found.predicted_gain_pct
    low, high = found.predicted_gain_low_pct, found.predicted_gain_high_pct
    if gain is None or low is None or high is None:
        return '', ''
    then = format_seconds(found.predicted_iter_s)
    return then, f'{gain:.1f} % less ({low:.1f} to {high:.1f} %)'


def describe_hours(answer: Answer) -> list[Section]:
    """When a run ends that goes on, and the hours that changes take off."""
    facts = [Fact('End     ', _phrase_end(answer))]
    for saved in answer.saved_hours:
        if max(saved.whole, saved.rest or 0.0) >= _LEAST_HOURS:
            facts.append(Fact('Hours   ', _phrase_saved(saved)))
    said = [fact for fact in facts if fact.value is not None]
    return [Section(facts=said)] if said else []


def _phrase_saved(saved: SavedHours) -> str:
    """``num_workers, persistent_workers: 3.1 h off a whole run, 2.4 h off what is
    left``."""
    names = ', '.join(map(_name_key, saved.keys))
    if saved.keys == (FAST_METRIC_KEY,):
        names = 'FastCocoMetric (MG501)'
    said = f'{names}: {format_hours(saved.whole)} off a whole run'
    if saved.rest is None:
        return said
    return f'{said}, {format_hours(saved.rest)} off what is left'


def _phrase_end(answer: Answer) -> str | None:
    """When it ends, where it has just written; else what was left."""
    ending = answer.ending
    if ending is None:
        return None
    now, end = answer.last_sign, answer.job_end
    if now is not None:
        said = [phrase_ending(ending, now)]
        said += [phrase_limit(end.limit, end.moment, now)] if end else []
        return '. '.join(said)
    low, high = map(format_hours, (ending.hours_left_low, ending.hours_left_high))
    return f'{format_hours(ending.hours_left)} were left ({low} to {high})'


def describe_next_job(answer: Answer) -> list[Section]:
    """The CPUs that the next SLURM job should ask for; nothing for another run."""
    found = answer.next_job
    if found is None:
        return []
    cpus, now_s = found.cpus_per_task, answer.summary.figures.iter_s
    given: str | None = None
    if found.asked_cpus is not None:
        given = f'asked for {found.asked_cpus}'
    if found.used_cores is not None:
        used = f'used {found.used_cores:.1f} on average'
        given = f'{given}, {used}' if given else used
    then = format_seconds(found.predicted_iter_s)
    lines = {
        'Ask for': f'#SBATCH --cpus-per-task={cpus}',
        'Or': f'CPUS_PER_TASK={cpus} tools/slurm_train.sh ..., mim train ... -c {cpus}',
        'Iteration': f'{then} with num_workers={found.num_workers} (predicted), now '
        f'{format_seconds(now_s)}',
        'This job': given,
    }
    title = f'The next job: {plural(cpus, "CPU")} for each task'
    return [Section(title, 'next-job', code=_align(lines))]


def _name(change: Change) -> str:
    return _name_key(change.key)


def _name_key(key: str) -> str:
    """Last part of a setting's key, marked where it is of validation's loader."""
    short = key.rpartition('.')[2]
    return f'val {short}' if key.startswith(VALIDATION_KEY) else short


def _value_of(value: object) -> str:
    """Value of a setting, in words."""
    return 'not set' if value is None else str(value)


def _gains(answer: Answer, run: Run) -> Iterator[tuple[str, str, str, str]]:
    """Rows of the table: what all changes together are predicted to give.

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
            yield 'iteration', format_seconds(run.figures.iter_s), then, ''
        gain, now, then = change.predicted_gain_pct, '', ''
        assert gain is not None  # as it was chosen by
        low, high = change.predicted_gain_low_pct, change.predicted_gain_high_pct
        if run.status == 'completed':
            now = format_seconds(run.figures.duration_s)
            then = format_seconds(run.figures.duration_s * (1 - gain / 100))
        name = 'training (train loader)' if gain_s else 'whole training'
        less = f'{gain:.1f} % less ({low:.1f} to {high:.1f} %)'
        if gain < 0.0 and low is not None and high is not None:
            less = f'{-gain:.1f} % more ({-high:.1f} to {-low:.1f} %)'
        yield name, now, then, less
    if validation and validation.loop_s and gain_s and run_gain_pct is not None:
        less = f'{run_gain_pct:.1f} % of the run less'
        now = format_seconds(validation.loop_s)
        then = format_seconds(validation.loop_s - gain_s)
        yield 'a validation', now, then, less


def _train_command(answer: Answer) -> str | None:
    output = shell_path(answer.output)
    return output and f'python tools/train.py {output}'


def list_commands(answer: Answer, *, details: bool = False, more: str = '') -> str:
    """Lines that say where the config was written, and what to type next.

    Args:
        answer: What is said.
        details: True for every command.
        more: What else there is to read; empty if it is all there.
    """
    folder = None
    # it trains, and neither validates nor saves
    if answer.output and pair_settings(answer.summary, answer.recommendation):
        folder = shell_path(answer.summary.meta.work_dir)
    kept = f'{answer.backup} (what was there)' if answer.backup else None
    lines = {
        'Written': answer.output,
        'Kept': kept,
        'Or once': answer.cfg_options if details else None,
        'Train': _train_command(answer) if details else None,
        'Measure': f'mmgpu verify {folder}' if folder else None,
        'More': f'--details ({more})' if more else None,
    }
    return _align(lines)


def _align(lines: Mapping[str, str | None]) -> str:
    """Lines with their labels, of those that have something to say."""
    return '\n'.join(f'{label:<10}{text}' for label, text in lines.items() if text)


def describe_settings(run: Run) -> str:
    """Settings of the train loader: ``batch_size=4, num_workers=2, ...``."""
    loader = run.meta.loader
    if loader.num_workers is None:
        why = run.figures.unknown.get('loader inside', 'they were not recorded')
        return f'Settings unknown: {why}.'
    values = {
        setting.name: setting.read(run)
        for setting in SETTINGS
        # what only workers have rests without them
        if setting.is_of_loader and (loader.num_workers or setting.resting is ...)
    }
    return f'{", ".join(f"{name}={value}" for name, value in values.items())}.'


def sentence_of(reason: str) -> str:
    """A clause as a sentence."""
    return f'{reason[:1].upper()}{reason[1:]}{"" if reason.endswith(".") else "."}'
