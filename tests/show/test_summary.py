from __future__ import annotations

import io
from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import (
    add_to_end,
    make_evidence,
    make_gpu_fields,
    make_gpu_run,
    make_inside_workers,
    make_ranks,
    make_run,
)
from mmgpu_hooks.judge.ranks import choose_judged, compare_ranks
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.schema.judged import (
    Change,
    Recommendation,
    RunAdvice,
    ValidationOutlook,
)
from mmgpu_hooks.schema.run import RunEvidence
from mmgpu_hooks.schema.text import quoted
from mmgpu_hooks.show import words
from mmgpu_hooks.show.summary import render_training_summary

HOOKS = {'LoggerHook': 0.12, 'EMAHook': 0.06, 'RuntimeInfoHook': 0.004}


def render_of(evidence: RunEvidence, *others: RunEvidence) -> str:
    runs = [Run(recorded) for recorded in (evidence, *others)]
    judged, ranks, first = choose_judged(compare_ranks(runs[0], runs[1:]), runs)
    diagnosis, rank = diagnose_run(judged), judged.meta.rank
    return render_training_summary(first, diagnosis, ranks, judged=rank)


def full_run() -> RunEvidence:
    """Run without a GPU in which all other values are known."""
    evidence = make_evidence(
        hooks_s=0.01,
        by_hook=HOOKS,
        workers=make_inside_workers(0.55),
        process_cpu_s=4.0,
        first_waits=1,
    )
    assert evidence.end is not None
    end = replace(evidence.end, saves=2)
    evidence = replace(evidence, end=end)
    return add_to_end(
        evidence, validation=6.0, startup=2.5, checkpoint_save=1.2, other=0.11
    )


def rows_of(text: str) -> dict[str, str]:
    rows = {line[2:13].strip(): line[13:] for line in text.splitlines()[1:]}
    rows.pop('', None)
    return rows


def test_the_summary_holds_the_figures_of_the_run():
    text = render_of(full_run())
    rows = rows_of(text)
    assert list(rows) == [
        'verdict',
        'iteration',
        'loader',
        'machine',
        'GPU',
        'rest',
        'next',
    ]
    assert rows['verdict'] == 'Data-bound (high confidence)'
    for label, figures in {
        'iteration': ('0.315 s', 'data wait 33 %', 'step 63 %', '12.7 images/s'),
        'loader': ('num_workers=2', '0.550 s', '65 % of it LoadImageFromFile'),
        'machine': ('2.2 of 8 cores', 'other programs 0.0', '1.0 GiB'),
        'GPU': ('not used',),
        'rest': ('2 saves 1.200 s (2.0 %)', 'validation 6.000 s (10 %)'),
        'next': ('mmgpu recommend /runs/one',),
    }.items():
        assert [figure for figure in figures if figure not in rows[label]] == []


def test_a_summary_in_chinese_has_the_same_rows_and_none_is_empty(monkeypatch):
    english = rows_of(render_of(full_run()))
    monkeypatch.setattr(words, '_wording', words.make_wording(['zh_CN']))
    lines = render_of(full_run()).splitlines()
    # a row begins with a letter in the third column
    rows = [line for line in lines[1:] if line[2] != ' ']
    assert len(rows) == len(english)
    assert all(len(line.split()) > 1 for line in rows)


@pytest.mark.parametrize('ranks', [1, 4, 64])
def test_the_summary_fits_into_a_log(ranks: int):
    found = [full_run()]
    if ranks > 1:
        waits = [0.006] * (ranks - 1) + [0.052]
        fields: dict[str, Any] = {
            'workers': make_inside_workers(),
            'process_cpu_s': 4.0,
        }
        found = make_ranks(waits, hooks_s=0.002, by_hook=HOOKS, **fields)
    text = render_of(*found)
    lines = text.splitlines()
    assert len(lines) <= 10
    assert max(map(len, lines)) <= 80
    # so that they differ from the other lines of a log
    assert all(line.startswith('  ') for line in lines[1:])
    assert text.isascii()
    if ranks > 1:
        assert f'Rank {ranks - 1}' in rows_of(text)['verdict']
        assert 'slowest' in rows_of(text)['ranks']


def test_ranks_that_are_alike_leave_their_lines_to_the_reason():
    found = make_ranks(
        [0.05, 0.05],
        hooks_s=0.002,
        by_hook=HOOKS,
        workers=make_inside_workers(),
        process_cpu_s=4.0,
    )
    text = render_of(*found)
    assert len(text.splitlines()) <= 10
    assert '50.0 ms of 0.302 s' in text
    assert {'machine', 'loader', 'GPU'} <= rows_of(text).keys()
    assert 'No rank holds' not in text


def test_a_card_has_its_use_and_its_memory():
    evidence = make_evidence(run=make_gpu_run(), **make_gpu_fields())
    row = rows_of(render_of(evidence))['GPU']
    assert 'utilisation ' in row
    assert 'peak ' in row


def test_what_fills_memory_has_a_row_and_ten_lines_are_enough():
    """Tests the summary's row on full memory, in at most ten lines."""
    ranks = []
    for rank in range(2):
        run = make_gpu_run(rank, 2)
        evidence = make_evidence(60, run=run, **make_gpu_fields())
        intervals = tuple(
            replace(interval, process_own_bytes=2**30 + n * 2**23)
            for n, interval in enumerate(evidence.intervals)
        )
        evidence = replace(evidence, intervals=intervals)
        ranks.append(add_to_end(evidence, validation=30.0))
    text = render_of(*ranks)
    assert rows_of(text)['memory'].startswith('MG401: ')
    assert len(text.splitlines()) <= 10


def test_a_run_that_was_not_measured_says_so():
    text = render_of(make_evidence(0))
    assert 'Not enough evidence' in rows_of(text)['verdict']
    assert rows_of(text)['iteration'].startswith('unknown')


def test_the_work_dir_is_a_word_of_the_shell():
    run = make_run(work_dir='/runs/my run\x1b]0;x\x07')
    text = render_of(make_evidence(run=run))
    assert text.splitlines()[-1].endswith(
        "mmgpu recommend '/runs/my run\\x1b]0;x\\x07'"
    )


WRITTEN = '/runs/one/20261120_091112/mine_recommended.py'
SCRIPT = ('tools/train.py', '/configs/mine.py', '--work-dir', '/runs/one')
ASK = 'mmgpu recommend /runs/one'


def advise(
    *gains: float, validation: float | None = None, config: str | None = WRITTEN
) -> RunAdvice:
    """Returns the advice with a written config and the predicted gains."""
    change = Change('num_workers', 0, 4, quoted(''), 'high', (), None, *gains)
    outlook = None if validation is None else ValidationOutlook(quoted(''), 1, 2.0, 1.0)
    if outlook is not None:
        outlook = replace(outlook, run_gain_pct=validation)
    return RunAdvice(Recommendation((change,), validation=outlook), config)


FASTER = advise(44.6, 36.2, 53.5)
GAIN = 'predicted: 45 % less time (36 to 54 %)'
NICED = RunAdvice(worker_nice=10)


@pytest.mark.parametrize(
    ('locale_encoding', 'console', 'shown'),
    [
        ('utf-8', 'utf-8', '/runs/\u68c0\u6d4b'),
        ('utf-8', 'ascii', r"'/runs/\u68c0\u6d4b'"),
        ('ascii', 'utf-8', r"'/runs/\u68c0\u6d4b'"),
    ],
)
def test_a_path_stays_as_it_is_typed_where_the_logs_take_it(
    monkeypatch, locale_encoding, console, shown
):
    monkeypatch.setattr('locale.getpreferredencoding', lambda _: locale_encoding)
    monkeypatch.setattr('sys.stdout', io.TextIOWrapper(io.BytesIO(), console))
    run = make_run(work_dir='/runs/\u68c0\u6d4b')
    text = render_of(make_evidence(run=run))
    assert shown.strip("'") in rows_of(text)['next']
    text.encode(locale_encoding)
    text.encode(console)


MINE = {'config_path': '/configs/mine.py'}
NEXT: dict[str, tuple[Any, ...]] = {
    'not asked for': (None, {}, SCRIPT, None, [ASK]),
    'nothing to change': (
        RunAdvice(),
        {},
        SCRIPT,
        None,
        [ASK, 'it says why nothing is to change'],
    ),
    'not written': (
        RunAdvice(reason=quoted('No space left\n on device ' + 90 * 'x')),
        {},
        SCRIPT,
        None,
        [ASK, 'no recommended config: No space left on device ...'],
    ),
    'a script': (
        FASTER,
        MINE,
        SCRIPT,
        None,
        [f'python tools/train.py {WRITTEN}', GAIN],
    ),
    'a module': (
        FASTER,
        MINE,
        ('-m', 'mine.train', '/configs/mine.py'),
        None,
        [f'python -m mine.train {WRITTEN}', GAIN],
    ),
    'below mmgpu run': (
        FASTER,
        MINE,
        SCRIPT,
        {},
        [f'mmgpu run tools/train.py {WRITTEN}', GAIN],
    ),
    'below mmgpu run with options': (
        FASTER,
        MINE,
        SCRIPT,
        {'interval': 20, 'write_config': True},
        [f'mmgpu run --interval 20 --write-config tools/train.py {WRITTEN}', GAIN],
    ),
    'niced workers, too': (
        replace(FASTER, worker_nice=10),
        MINE,
        SCRIPT,
        {'interval': 20, 'worker_nice': 0},
        [f'mmgpu run --interval 20 --worker-nice 10 tools/train.py {WRITTEN}', GAIN],
    ),
    'niced workers alone': (
        NICED,
        MINE,
        SCRIPT,
        {},
        [
            'mmgpu run --worker-nice 10 tools/train.py /configs/mine.py',
            'niced workers give way to the thread that saves',
        ],
    ),
    'niced workers of a launcher': (
        NICED,
        {**MINE, 'world_size': 2},
        SCRIPT,
        {},
        [
            'train /configs/mine.py with mmgpu run --worker-nice 10',
            'niced workers give way to the thread that saves',
        ],
    ),
    'niced workers of a config in memory': (
        replace(NICED, reason='no room'),
        {'config_path': None},
        ('-c',),
        {},
        [
            'train it again with mmgpu run --worker-nice 10',
            'no recommended config: no room',
        ],
    ),
    'what the config cannot take': (
        replace(FASTER, left_out=('default_hooks.gpu_efficiency.worker_nice',)),
        MINE,
        SCRIPT,
        None,
        [
            f'python tools/train.py {WRITTEN}',
            GAIN,
            'left out: default_hooks.gpu_efficiency.worker_nice',
        ],
    ),
    'a script that takes no config': (
        advise(-1.2, -3.4, -0.6),
        MINE,
        SCRIPT[:1],
        None,
        [f'train {WRITTEN}', 'predicted: 1 % more time (1 to 3 %)'],
    ),
    'a config in memory': (
        advise(validation=3.21),
        {'config_path': None},
        ('-c',),
        None,
        [f'train {WRITTEN}', 'predicted: 3.2 % less time, in validation'],
    ),
    'a gain that is unknown': (advise(), {}, (), None, [f'train {WRITTEN}']),
    'a launcher': (
        FASTER,
        {**MINE, 'world_size': 2},
        SCRIPT,
        None,
        [f'train {WRITTEN}', GAIN],
    ),
    'a launcher below mmgpu run': (
        FASTER,
        {**MINE, 'world_size': 2},
        SCRIPT,
        {'summary': True},
        [f'train {WRITTEN} with mmgpu run --summary', GAIN],
    ),
    'a word of the shell': (
        advise(config="/runs/it's mine.py"),
        {},
        SCRIPT,
        None,
        ["train '/runs/it'\"'\"'s mine.py'"],
    ),
}


@pytest.mark.parametrize('name', NEXT)
def test_what_to_type_next_is_the_end_of_it(name):
    advice, fields, program, arguments, expected = NEXT[name]
    evidence = full_run()
    run = Run(replace(evidence, run=replace(evidence.run, **fields)))
    text = render_training_summary(
        run, diagnose_run(run), None, advice, program, arguments=arguments
    )
    lines = text.splitlines()
    assert [line[13:] for line in lines[-len(expected) :]] == expected
    assert lines[-len(expected)].startswith('  next       ')
    assert len(lines) <= 10
