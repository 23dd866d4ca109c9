"""The laws that a reading of the source can hold."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / 'mmgpu_hooks'
SOURCES = sorted(PACKAGE.rglob('*.py'))

# Who may import what; a path ending in / stands for the whole room.
ALLOWED = {
    'pynvml': ['measure/gpu.py', 'experiment/cards.py'],
    'torch': [
        'hooks/',
        'measure/cuda.py',
        'measure/loader/worker.py',
        # a step of the real model is the only thing that knows what it keeps
        'memory/activations.py',
        # MMEngine joins ranks on CUDA cards alone
        'experiment/trial_child.py',
    ],
    'mmengine': ['hooks/', 'config/', 'experiment/', 'memory/'],
    'psutil': [
        'experiment/engine.py',
        'experiment/trial.py',
        'measure/host.py',
        'measure/save.py',
    ],
    'rich': ['show/', 'commands/'],
    'cv2': ['experiment/'],
    'matplotlib': ['show/charts.py'],
    'jinja2': ['show/page.py'],
    'markupsafe': ['show/page.py'],
    'numpy': [
        'experiment/',
        'memory/',
        'judge/',
        'measure/gpu.py',
        'measure/loader/',
        'model/',
        'show/run_charts.py',
    ],
    'mmdet': [],
    'mmcv': [],
}
LATE = ('pynvml', 'torch', 'cv2', 'matplotlib', 'jinja2')


@functools.cache
def parse(path: Path) -> ast.Module:
    """Each file once, whatever is looked for in it."""
    return ast.parse(path.read_text())


@functools.cache
def attributes_of(path: Path) -> frozenset[tuple[str, str]]:
    """The last name of every attribute, and the whole expression."""
    return frozenset(
        (node.attr, ast.unparse(node))
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Attribute)
    )


@functools.cache
def imports_of(path: Path) -> tuple[tuple[str, bool], ...]:
    """Top-level names of every import, and whether it runs when the file does."""
    return tuple(_find_imports(parse(path)))


def _find_imports(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    eager = set(ast.walk(tree))
    for node in ast.walk(tree):
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        is_for_types = isinstance(node, ast.If) and 'TYPE_CHECKING' in ast.dump(
            node.test
        )
        if is_function or is_for_types:
            eager -= set(ast.walk(node)) - {node}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split('.')[0], node in eager
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or '').split('.')[0], node in eager


@pytest.mark.parametrize('library', ALLOWED)
def test_a_foreign_library_is_imported_only_where_the_design_says(library):
    importers = {
        str(path.relative_to(PACKAGE))
        for path in SOURCES
        if any(name == library for name, _ in imports_of(path))
    }
    strangers = {p for p in importers if not p.startswith(tuple(ALLOWED[library]))}
    assert strangers == set()


def test_libraries_that_may_be_missing_are_imported_late():
    early = [
        (str(path.relative_to(PACKAGE)), name)
        for path in SOURCES
        for name, eager in imports_of(path)
        if eager and name in LATE
    ]
    assert early == []


def test_only_the_commands_print_or_exit():
    speakers = set()
    for path in SOURCES:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in ('print', 'sys.exit', 'exit', 'quit', 'os._exit'):
                    speakers.add(str(path.relative_to(PACKAGE)))
    assert {p for p in speakers if not p.startswith('commands/')} == {'__main__.py'}


@pytest.mark.parametrize('name', ['time.time', 'datetime.now', 'datetime.datetime.now'])
def test_durations_never_come_from_the_wall_clock(name):
    users = {
        str(path.relative_to(PACKAGE))
        for path in SOURCES
        for _, expression in attributes_of(path)
        if expression == name
    }
    assert users <= {'measure/clock.py'}


def test_the_wall_clock_labels_records_and_reads_the_drivers_stamps_alone():
    users = {
        str(path.relative_to(PACKAGE))
        for path in SOURCES
        if 'wall_unix_s' in path.read_text() and path.name != 'clock.py'
    }
    # the driver stamps its samples with it
    others = {
        user for user in users if not user.startswith(('measure/gpu', 'measure/cards'))
    }
    assert others == {
        'hooks/recorder.py',
    }


@pytest.mark.parametrize(
    'call', ['synchronize', 'all_gather', 'all_reduce', 'barrier', 'reset_peak_memory']
)
def test_the_hook_neither_synchronises_nor_gathers(call):
    users = [
        path.name
        for path in SOURCES
        for attribute, _ in attributes_of(path)
        if call in attribute
    ]
    assert users == []


def test_what_reads_a_gpu_knows_no_record():
    for source in SOURCES:
        if str(source.relative_to(PACKAGE)).startswith(('measure/gpu', 'measure/cuda')):
            text = source.read_text()
            assert 'mmgpu_hooks.schema' not in text
            assert 'msgspec' not in text


def test_no_room_is_a_drawer():
    drawers = {'utils.py', 'common.py', 'helpers.py'}
    assert not [path for path in SOURCES if path.name in drawers]


def test_analysis_needs_neither_torch_nor_a_training_host(tmp_path: Path):
    code = (
        'import sys\n'
        "for name in ('torch', 'mmengine', 'mmcv', 'mmdet', 'pynvml', 'psutil'):\n"
        '    sys.modules[name] = None\n'
        'import mmgpu_hooks\n'
        'from mmgpu_hooks.commands.main import main\n'
        f"sys.exit(main(['recommend', {str(tmp_path)!r}]))\n"
    )
    done = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 2
    assert 'found an empty folder' in done.stderr
    assert 'Traceback' not in done.stderr


def test_rooms_import_only_rooms_above_them():
    lint_imports = Path(sys.executable).with_name('lint-imports')
    done = subprocess.run([str(lint_imports)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
