"""Tests by the pseudo-language that every shown sentence is translatable."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from fakes.experiments import DESCRIBED
from fakes.overhead import make_host_bound, make_profile
from fakes.pages import read_shown
from fakes.replaced import replace
from fakes.tuning import settings
from fakes.validations import make_validation
from fakes.wrong_inputs import WRONG, lay_out_wrong, split_words
from golden.facts import CASES, SHARED_CONFIG, lay_out, list_cases
from mmgpu_hooks.commands.main import COMMANDS, main
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.recommend.answer import Answer
from mmgpu_hooks.recommend.host_overhead import with_host_overhead
from mmgpu_hooks.recommend.hours import forecast_end, list_saved_hours
from mmgpu_hooks.recommend.recommendation import recommend_settings
from mmgpu_hooks.schema.recorded import TrainingPlan, TunedRecord, ValInterval
from mmgpu_hooks.schema.text import Wording
from mmgpu_hooks.show import words
from mmgpu_hooks.show.run_sections import describe_details
from mmgpu_hooks.show.terminal import render
from mmgpu_hooks.show.words import MARKS

_INNERMOST = re.compile(f'{MARKS[0]}[^{MARKS[0]}{MARKS[1]}]*{MARKS[1]}')
_WORDS = re.compile(r"(?<![\w/.=-])[A-Za-z][a-z']+(?: [a-z']+)+(?![\w/=-]|\.\w)")
_WORD = re.compile(r"(?<![\w/.=-])[A-Za-z][a-z']+(?![\w/.=-])")

NAMES = {
    # units, and values as Python writes them
    *('ms', 'us', 'min', 'cpu', 'cuda', 'True', 'False'),
    # packages, and the name of the command that wrote a page
    *('mmengine', 'mmcv', 'mmdet', 'torch', 'python', 'platform', 'Linux'),
    *('mmgpu', 'report', 'run'),
    # transforms of the pipeline
    *('Resize', 'Pad', 'Mosaic'),
    # a comment of the config that is shown
    *('as', 'it', 'was'),
    # a reason in the evidence
    *('training', 'runs', 'on', 'the'),
}
"""Single English words that answers on golden runs may show outside of brackets."""

QUOTED = re.compile(
    # click's own words, in its own catalog
    r'Usage:|Show this message and exit|Show the version and exit'
    r'|No such option|Invalid value for|is not one of|requires an argument'
    r'|Got unexpected extra|No such command'
    # what Python and the system say of a file, and YAPF of a name
    r'|No such file or directory|was never closed|closing quotation'
    r'|option should be'
    # commands as they are typed
    r'|python tools|tools/train|mmgpu \w+'
    # a reason in the evidence
    r'|training runs on the'
    # a comment of the config that is shown
    r'|as it was'
)


def strip_marked(out: str) -> str:
    """Returns an output without everything in the pseudo-language's brackets."""
    whole = ' '.join(out.split())
    while (shorter := _INNERMOST.sub('|', whole)) != whole:
        whole = shorter
    return whole


def find_escapes(out: str) -> Iterator[str]:
    """Yields two or more English words outside the pseudo-language's brackets."""
    for found in _WORDS.findall(strip_marked(out)):
        if not QUOTED.search(found):
            yield found


def find_labels(out: str) -> Iterator[str]:
    """Yields single English words outside of brackets, such as column headings."""
    for found in _WORD.findall(strip_marked(out)):
        if found not in NAMES:
            yield found


@pytest.fixture
def pseudo(monkeypatch):
    """Sets the language to the pseudo-language."""
    monkeypatch.setenv('MMGPU_LANG', 'pseudo')


def test_words_outside_of_the_brackets_are_found():
    out = '⟦Of ⟦2 saves⟧ one\n  was slow⟧ and two words left'
    assert strip_marked(out) == '| and two words left'
    assert [*find_escapes(out)] == ['and two words left']
    assert [*find_escapes('⟦a b c⟧ num_workers=2, /tmp/a b')] == []
    assert [*find_labels('⟦a b c⟧ Iteration 12 ms')] == ['Iteration']
    shown = read_shown('<body><nav aria-label="Sections"><p>Skip</p></nav>')
    assert [*find_labels(shown)] == ['Skip', 'Sections']


@pytest.mark.parametrize('command', [None, *COMMANDS])
def test_help_is_in_brackets(pseudo, capsys, command):
    assert main([*([command] if command else []), '--help']) == 0
    assert [*find_escapes(capsys.readouterr().out)] == []


@pytest.mark.parametrize('case', list_cases())
def test_an_answer_is_in_brackets(pseudo, capsys, tmp_path, case):
    lay_out(CASES / case, tmp_path)
    runs: list[Path] = sorted(tmp_path.glob('run*'))
    asked = ['recommend', '--dry-run', '--details', *map(str, runs)]
    main([*asked, '--config', str(SHARED_CONFIG)])
    answer = capsys.readouterr()
    assert [*find_escapes(answer.out), *find_escapes(answer.err)] == []
    assert [*find_labels(answer.out)] == []


@pytest.mark.parametrize('code', ['', 'MG101', 'oom_host', 'compute_bound'])
def test_a_page_of_explain_is_in_brackets(pseudo, capsys, code):
    assert main(['explain', *([code] if code else [])]) == 0
    assert [*find_escapes(capsys.readouterr().out)] == []


@pytest.mark.parametrize('case', ['rtmdet_before', 'gpu_swings'])
def test_the_page_is_in_brackets(pseudo, tmp_path, case):
    lay_out(CASES / case, tmp_path)
    page = tmp_path / 'page.html'
    assert main(['report', str(tmp_path / 'run'), '--output', str(page)]) == 0
    assert [*find_labels(read_shown(page.read_text()))] == []


@pytest.mark.parametrize(
    'words',
    [
        ['why', 'RUN'],
        ['predict', 'RUN', '--num-workers', '0', '2', '8'],
        ['predict', 'RUN', '--batch-size', '4', '--dry-run'],
        ['compare', 'RUN', 'RUN'],
        ['compare', 'RUN', 'OTHER'],
        ['runs', 'FOLDER'],
        ['runs', 'FOLDER', '--judge'],
        ['doctor'],
        ['doctor', 'CONFIG'],
        ['set', 'CONFIG', 'train_dataloader.num_workers=3', '--dry-run'],
        ['set', 'CONFIG', 'train_dataloader.num_workers=-3', '--dry-run'],
        ['set', 'CONFIG', 'train_dataloader.workers=3', '--dry-run'],
        ['enable', 'CONFIG', '--dry-run'],
        ['disable', 'CONFIG', '--dry-run'],
        ['pick-gpu'],
        ['recommend', 'FOLDER/nothing'],
        ['predict', 'RUN', '--num-workers', 'many'],
    ],
    ids=' '.join,
)
def test_what_commands_answer_is_in_brackets(pseudo, capsys, tmp_path, words):
    places = {'FOLDER': tmp_path, 'RUN': tmp_path / 'a' / 'run'}
    places |= {'OTHER': tmp_path / 'b' / 'run', 'CONFIG': tmp_path / 'config.py'}
    lay_out(CASES / 'rtmdet_before', tmp_path / 'a')
    lay_out(CASES / 'rtmdet_after', tmp_path / 'b')
    shutil.copy(SHARED_CONFIG, places['CONFIG'])
    for name, place in places.items():
        words = [word.replace(name, str(place)) for word in words]
    main(words)
    answer = capsys.readouterr()
    assert answer.out or answer.err
    assert [*find_escapes(answer.out), *find_escapes(answer.err)] == []


@pytest.mark.parametrize('line', WRONG)
def test_an_error_is_in_brackets(pseudo, capsys, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    lay_out_wrong(tmp_path)
    main(split_words(line, tmp_path))
    answer = capsys.readouterr()
    assert answer.err or answer.out
    assert [*find_escapes(answer.out), *find_escapes(answer.err)] == []


@pytest.mark.parametrize('describe', DESCRIBED.values(), ids=DESCRIBED)
def test_what_an_experiment_answers_is_in_brackets(monkeypatch, describe):
    monkeypatch.setattr(words, '_wording', Wording(marks=MARKS))
    assert [*find_escapes(render(describe()))] == []


def make_varied() -> Run:
    """Returns a host-bound run that validates, was tuned, and is still training."""
    spent = {'metric': 30.0, 'forward': 9.0}
    validations = [
        make_validation(
            number, parts_s=spent, wall_s=39.0, metrics_s={'CocoMetric': 30.0}
        )
        for number in (0, 1)
    ]
    change = TunedRecord(
        iteration=40,
        action='change',
        reason='predicted',
        old=settings(1),
        new=settings(2),
        gain_pct=30.0,
    )
    after = replace(change, action='keep', reason='unclear', gain_pct=1.0)
    evidence = make_host_bound(make_profile())
    plan = TrainingPlan(val_intervals=(ValInterval(begin=0, interval=1),))
    return Run(
        replace(
            evidence,
            run=replace(evidence.run, plan=plan),
            validations=tuple(validations),
            tuned=(change, after),
            end=None,
        )
    )


def test_what_only_some_runs_have_is_in_brackets(monkeypatch):
    monkeypatch.setattr(words, '_wording', Wording(marks=MARKS))
    run = make_varied()
    found = with_host_overhead(recommend_settings(run), run)
    ending = forecast_end(run)
    answer = Answer(
        'run.jsonl',
        diagnose_run(run),
        found,
        run,
        ending=ending,
        last_sign=datetime(2026, 11, 27, 22, 0),
        saved_hours=list_saved_hours(run, found, ending),
    )
    out = ' '.join(render(describe_details(answer)).split())
    assert [*find_escapes(out)] == []
    for expected in ('host CPU', 'CocoMetric', 'no difference told', 'ends', 'Hours'):
        assert expected in out
