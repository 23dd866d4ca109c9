"""``make matrix``: trains with several versions of packages, and writes a table.

``noxfile.py`` installs each stack in an environment of its own and runs the tests named
here; this module says which, reads pytest's JUnit reports and renders the table. It
imports nothing that is not in Python.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.markdown import render_table

TRAINING = 'tests/training'
TOYS, DETECTION = 'toys', 'MMDetection'
"""Groups of test trainings: small models on MMEngine alone, and MMDetection's own."""


def _name(*tests: str) -> tuple[str, ...]:
    return tuple(
        f'{TRAINING}/test_training_{file}.py{test and "::test_"}{test}'
        for file, _, test in (name.partition(': ') for name in tests)
    )


TESTS: Mapping[str, Sequence[str]] = {
    TOYS: _name(
        # each way to start workers; training is the same to the last bit
        'before_workers',
        'harmless: the_hook_changes_nothing_and_can_be_copied_while_it_trains',
        'harmless: a_loader_that_a_hook_put_there_is_the_one_that_is_measured',
        'ledger',
        'scalars',
        'saves',
        'validation',
        # what is said before the first iteration, at the end, and when it stops
        'start_parts: planted_parts_are_found_and_add_up',
        'start_parts: nothing_of_the_start_watch_is_left_in_the_training',
        'ending',
        'verdict: a_training_that_ends_has_its_verdict_after_the_end_record',
        'recommended: a_training_that_completes_leaves_a_child_of_its_config',
        'recommended: a_pure_python_config_with_relative_bases_is_written_whole',
        'stuck: the_worker_and_the_sample_are_named',
        # what changes a training when asked
        'tuned: what_is_trained_stays_the_same_when_workers_change',
        'tuned: a_loss_is_taken_back_and_ends_tuning',
        'optimized: checkpoints_are_the_same_to_the_last_bit',
        'optimized: a_run_resumes_from_either',
        # two ranks, by torchrun
        'ranks',
    ),
    DETECTION: _name(
        'detection',
        'optimized: a_detector_is_the_same_to_the_last_bit',
        'tuned: a_mode_that_a_hook_switches_reaches_workers_that_live_on',
        # every sampler, by epochs and by iterations
        'tuned_samplers',
    ),
}
"""Test files by group of trainings; none needs SLURM, root or a mock GPU driver."""

PINNED = ('-r', 'requirements/build.txt', '-r', 'requirements/demo.txt')
"""Arguments of ``pip install`` for the pinned versions that ``make setup`` uses."""


@dataclass(frozen=True)
class Stack:
    """Set of package versions that are installed and tested together."""

    title: str
    pythons: Sequence[str]
    """Versions of Python in order of preference; the first one found is taken."""
    packages: Sequence[str]
    """Arguments of ``pip install`` for torch and the other dependencies."""
    openmmlab: Sequence[str]
    """Arguments of ``pip install --no-deps`` for OpenMMLab's packages.

    Their dependencies would require OpenCV with a window system."""
    detection: Sequence[str] = ()
    """Arguments of ``pip install`` for MMCV and MMDetection; empty if not tested."""
    known: Mapping[str, str] = field(default_factory=dict)
    """Reasons of known failures in other packages, by test or test file."""


STACKS: Mapping[str, Stack] = {
    'oldest': Stack(
        title='the oldest torch',
        pythons=('3.9',),
        packages=(
            # the first with a wheel for Python 3.9
            'torch==1.7.1',
            'numpy<2',
            'opencv-python-headless<4.12',
            # MMEngine 0.8.0 gives yapf an argument that newer ones refuse
            'yapf==0.40.1',
            'setuptools<80',
            'addict',
            'matplotlib',
            'pillow',
            'pyyaml',
            'termcolor',
        ),
        openmmlab=('mmengine==0.8.0',),
        known={
            'test_training_ranks': 'torchrun came with torch 1.9',
            'test_training_ending::test_the_plan_is_recorded[iterations]': (
                'MMEngine 0.8.0 has no save_begin yet'
            ),
            'test_training_optimized::test_checkpoints_are_the_same_to_the_last_bit': (
                'small_tensors and ema are refused: torch 1.7 neither says who else '
                'uses a tensor nor averages lists; Adam has no foreach there'
            ),
        },
    ),
    'pinned': Stack(
        title='as `make demo` installs them',
        pythons=('3.11', '3.12', '3.13', '3.10'),
        packages=PINNED,
        openmmlab=('mmengine==0.10.7',),
        detection=('requirements/install_mmcv.sh',),
    ),
    'fork': Stack(
        title='the maintained fork',
        pythons=('3.11', '3.12', '3.10'),
        packages=(*PINNED, 'imageio', 'scikit-image'),
        # its MMDetection imports imaug, which requires OpenCV with a window system
        openmmlab=('onedl-mmengine==0.10.12', 'imaug==0.4.3'),
        detection=('onedl-mmcv==2.3.6', 'onedl-mmdetection==3.5.1'),
    ),
    'newest': Stack(
        title='the newest torch',
        pythons=('3.13', '3.12', '3.11', '3.10'),
        packages=('torch', 'setuptools<80', '-r', 'requirements/demo.txt'),
        openmmlab=('mmengine==0.10.7',),
    ),
}

PARTS: Sequence[tuple[str, str]] = tuple(
    (name, part)
    for name, stack in STACKS.items()
    for part in ((TOYS, DETECTION) if stack.detection else (TOYS,))
)
"""Rows of ``make matrix``'s table: name of package set, and group of test trainings."""

COLUMNS: Mapping[str, Sequence[str]] = {
    'torch': ('torch',),
    'MMEngine': ('mmengine', 'onedl-mmengine'),
    'MMCV': ('mmcv', 'onedl-mmcv'),
    'MMDetection': ('mmdet', 'onedl-mmdetection'),
}
"""Columns of ``make matrix``'s table, each with the packages whose version it shows."""


@dataclass(frozen=True)
class Report:
    """Outcomes of all tests in one run of pytest."""

    passed: Sequence[str]
    failed: Sequence[str]
    skipped: Mapping[str, str]
    """Reason of each skipped test, by test name."""
    seconds: float


def read_report(path: Path) -> Report:
    """Reads pytest's JUnit report; tests are named ``test_file::test_name[case]``."""
    passed: list[str] = []
    failed: list[str] = []
    skipped: dict[str, str] = {}
    seconds = 0.0
    for case in ElementTree.parse(path).getroot().iter('testcase'):
        seconds += float(case.get('time', 0))
        # a file that cannot be imported has no class
        test, of_class = case.get('name', ''), case.get('classname', '')
        file = (of_class or test).rpartition('.')[2]
        name = f'{file}::{test}' if of_class else file
        skip = case.find('skipped')
        if case.find('failure') is not None or case.find('error') is not None:
            failed.append(name)
        elif skip is not None:
            skipped[name] = ' '.join((skip.get('message') or '').split())
        else:
            passed.append(name)
    return Report(passed, failed, skipped, seconds)


def merge(reports: Sequence[Report]) -> Report:
    """Merges the reports of several runs of pytest into one report."""
    return Report(
        [test for report in reports for test in report.passed],
        [test for report in reports for test in report.failed],
        {test: why for report in reports for test, why in report.skipped.items()},
        sum(report.seconds for report in reports),
    )


def name_path(test: str) -> str:
    """Returns a reported test or test file as an argument for pytest."""
    file, colons, name = test.partition('::')
    return f'{TRAINING}/{file}.py{colons}{name}'


def find_reason(test: str, known: Mapping[str, str]) -> str | None:
    """Returns the reason of a known failure of a test or its file, if there is one."""
    name = test.partition('[')[0]
    for key in (test, name, name.partition('::')[0]):
        if key in known:
            return known[key]
    return None


@dataclass(frozen=True)
class Row:
    """Table row: results of one group of test trainings with one set of packages."""

    name: str
    part: str
    versions: Mapping[str, str] = field(default_factory=dict)
    """Installed version of each package and of ``python``, by lower-case name."""
    passed: int = 0
    failed: Sequence[str] = ()
    retried: Sequence[str] = ()
    """Passed tests that had failed at the first attempt."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Number of skipped tests, by reason."""
    minutes: float = 0.0
    date: str = ''
    problem: str = ''
    """Reason why no test ran, such as a package that does not install."""

    @property
    def unexpected(self) -> list[str]:
        """Failed tests without a known reason."""
        known = STACKS[self.name].known
        return [test for test in self.failed if find_reason(test, known) is None]

    @property
    def verdict(self) -> str:
        """Verdict on this row's trainings: passed, failed, or why no test ran."""
        if self.problem:
            return self.problem
        if self.unexpected or not self.passed:
            return 'FAILS'
        return 'passes, but for what is known' if self.failed else 'passes'

    @property
    def cells(self) -> list[str]:
        """Texts of the cells of this row in the table of ``make matrix``."""
        shown = COLUMNS if self.part == DETECTION else ('torch', 'MMEngine')
        found = (
            next(
                (
                    f'{package} {self.versions[package]}'
                    if package.startswith('onedl-')
                    else self.versions[package]
                    for package in packages
                    if package in self.versions and column in shown
                ),
                '',
            )
            for column, packages in COLUMNS.items()
        )
        counts = (self.passed, len(self.failed), sum(self.skipped.values()))
        return [
            STACKS[self.name].title,
            self.part,
            self.versions.get('python', ''),
            *found,
            *(map(str, counts) if not self.problem else ('', '', '')),
            f'{self.minutes:.1f}' if not self.problem else '',
            self.verdict,
        ]


HEADER = (
    'stack',
    'trainings',
    'Python',
    *COLUMNS,
    'passed',
    'failed',
    'skipped',
    'minutes',
    'verdict',
)


WORDS: Mapping[str, Mapping[str, str]] = {
    'en': {},
    'zh_cn': {
        'stack': '组合',
        'trainings': '训练',
        'passed': '通过',
        'failed': '失败',
        'skipped': '跳过',
        'minutes': '分钟',
        'verdict': '结论',
        'the oldest torch': '最旧的 torch',
        'as `make demo` installs them': '`make demo` 安装的版本',
        'the maintained fork': '社区维护的 fork',
        'the newest torch': '最新的 torch',
        TOYS: '小模型',
        'passes': '通过',
        'passes, but for what is known': '除已知问题外通过',
        'FAILS': '未通过',
        'not tried': '未测试',
        'not installed': '安装失败',
        'no such Python here': '这台机器没有这个版本的 Python',
    },
}
"""Translations of the words in ``make matrix``'s table, by documentation language."""

_TABLE = re.compile(r'(?:^\|.*\n)+', re.MULTILINE)


def write_pages(rows: Sequence[Row], docs: Path) -> None:
    """Writes the table of ``make matrix`` into ``versions.md``, in each language.

    Args:
        rows: In the order of :data:`PARTS`.
        docs: Folder of all languages.
    """
    for language, words in WORDS.items():
        page = docs / language / 'versions.md'
        lines = [[words.get(cell, cell) for cell in row.cells] for row in rows]
        table = render_table([words.get(cell, cell) for cell in HEADER], lines)
        text = page.read_text(encoding='utf-8')
        place = _TABLE.search(text)
        if place is not None:
            text = f'{text[: place.start()]}{table}\n{text[place.end() :]}'
            page.write_text(text, encoding='utf-8')


def _list_failures(rows: Sequence[Row]) -> Iterator[str]:
    """Returns Markdown lines on failed tests and their reasons."""
    for row in rows:
        by_reason: dict[str, list[str]] = {}
        for test in row.failed:
            reason = find_reason(test, STACKS[row.name].known) or 'no reason is noted'
            by_reason.setdefault(reason, []).append(test)
        for reason, tests in by_reason.items():
            names = sorted({re.sub(r'\[.*', '', test) for test in tests})
            listed = ', '.join(f'`{name}`' for name in names)
            title = STACKS[row.name].title
            yield f'- {title}, {row.part}: {len(tests)} fail: {reason} ({listed})'


def _list_skips(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        for reason, count in row.skipped.items():
            yield f'- {STACKS[row.name].title}, {row.part}: {count}: {reason}'


def render_page(rows: Sequence[Row], system: str) -> str:
    """Renders the results of ``make matrix`` as a page for ``benchmarks/results``.

    Args:
        rows: In the order of :data:`PARTS`.
        system: Operating system and machine.
    """
    dates = sorted({row.date for row in rows if row.date})
    failures, skips = [*_list_failures(rows)], [*_list_skips(rows)]
    parts = [
        '# The trainings of the tests in other versions',
        'Made by `make matrix`. "Toys" are small trainings on MMEngine\'s own Runner, '
        'loops, loader and hooks;\n"MMDetection" trains a thin RTMDet by its own '
        '`tools/train.py`. Which tests: `benchmarks/matrix.py`.',
        render_table(HEADER, [row.cells for row in rows]),
    ]
    retried = [
        f'- {STACKS[row.name].title}, {row.part}: `{test}`'
        for row in rows
        for test in row.retried
    ]
    if retried:
        parts.append('What failed once and passed alone:\n\n' + '\n'.join(retried))
    if failures:
        parts.append('What fails, and why:\n\n' + '\n'.join(failures))
    if skips:
        parts.append('What is skipped:\n\n' + '\n'.join(skips))
    parts.append(f'- date: {", ".join(dates) or "not run"}\n- system: {system}')
    return '\n\n'.join(parts) + '\n'
