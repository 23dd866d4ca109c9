"""Tests rules of code structure by parsing the package's source."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / 'mmgpu_hooks'
SOURCES = {
    str(path.relative_to(PACKAGE)): path.read_text()
    for path in sorted(PACKAGE.rglob('*.py'))
}
BENCHMARKS = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in sorted(ROOT.glob('benchmarks/**/*.py'))
    # configs of MMEngine
    if 'ordinary' not in path.parts
}

# Who may import what; a path ending in / stands for the whole package.
IMPORTERS = {
    'pynvml': ('measure/gpu.py',),
    'torch': (
        # PyTorch's own loader alone can be switched
        'measure/loader/switch.py',
        'measure/loader/rehearsal.py',
        # its DataLoader says which settings it takes
        'config/accepted.py',
        'hooks/',
        'optimize/',
        'measure/cuda.py',
        # the reader of its flight recorder
        'measure/flight_recorder.py',
        'measure/loader/worker.py',
        # a step of the real model is the only thing that knows what it keeps
        'memory/activations.py',
        # MMEngine joins ranks on CUDA cards alone
        'experiment/trial_child.py',
        'experiment/trial_profile.py',
    ),
    # the package itself registers the hook
    'mmengine': (
        '__init__.py',
        'hooks/',
        'optimize/',
        'config/',
        'experiment/',
        'memory/',
    ),
    # who holds a lock is asked where it is waited for
    'psutil': ('config/lock_holders.py', 'experiment/', 'measure/'),
    'rich': ('show/', 'commands/'),
    'cv2': ('experiment/', 'optimize/'),
    'matplotlib': ('show/',),
    'jinja2': ('show/',),
    'numpy': (
        'experiment/',
        'memory/',
        'judge/',
        'measure/',
        'model/',
        'show/',
        'optimize/',
    ),
    'pycocotools': ('optimize/',),
    'mmdet': ('nowhere',),
    'mmcv': ('nowhere',),
}
LATE = {'pynvml', 'torch', 'cv2', 'matplotlib', 'jinja2', 'pycocotools'}

_TUPLES = ('tuple', 'Tuple')
MOST_LINES, DEEPEST = 60, 5
STILL_LONGER = {
    'commands/save_bench.py: save_bench',
    'memory/estimate.py: estimate_memory',
}
NESTING = (
    ast.If,
    ast.For,
    ast.While,
    ast.With,
    ast.Try,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
)


@functools.cache
def parse(name: str) -> ast.Module:
    return ast.parse(SOURCES.get(name) or BENCHMARKS[name])


def users(found: Callable[[ast.AST], bool]) -> set[str]:
    """Returns the modules with a syntax node for which the given function is true."""
    return {name for name in SOURCES if any(map(found, ast.walk(parse(name))))}


def imported(node: ast.AST) -> list[str]:
    """Returns the top-level packages that an import statement imports."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom):
        names = [node.module or '']
    return [name.split('.')[0] for name in names]


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the syntax nodes that run when a module is imported."""
    yield node
    for child in ast.iter_child_nodes(node):
        for_types = isinstance(child, ast.If) and 'TYPE_CHECKING' in ast.dump(
            child.test
        )
        if not isinstance(child, ast.FunctionDef) and not for_types:
            yield from at_import(child)


@pytest.mark.parametrize('library', IMPORTERS)
def test_a_foreign_library_is_imported_only_where_the_design_says(library: str):
    importers = users(lambda node: library in imported(node))
    assert {n for n in importers if not n.startswith(IMPORTERS[library])} == set()


def test_libraries_that_may_be_missing_are_imported_late():
    early = [
        (name, library)
        for name in SOURCES
        # its modules are imported late themselves, each when it is asked for
        if not name.startswith('optimize/')
        for node in at_import(parse(name))
        for library in LATE.intersection(imported(node))
    ]
    assert early == []


def test_no_module_imports_what_another_keeps_to_itself():
    private = [
        (name, alias.name)
        for name in SOURCES
        for node in ast.walk(parse(name))
        if isinstance(node, ast.ImportFrom) and imported(node) == ['mmgpu_hooks']
        for alias in node.names
        if alias.name.startswith('_') and alias.name != '__version__'
    ]
    assert private == []


def test_only_the_commands_print_or_exit():
    words = ('print', 'sys.exit', 'exit', 'quit', 'os._exit')
    speakers = users(
        lambda node: isinstance(node, ast.Call) and ast.unparse(node.func) in words
    )
    assert {n for n in speakers if not n.startswith('commands/')} == {'__main__.py'}


def test_durations_never_come_from_the_wall_clock():
    clocks = ('time.time', 'datetime.now', 'datetime.datetime.now')
    wall = users(
        lambda node: isinstance(node, ast.Attribute) and ast.unparse(node) in clocks
    )
    assert wall <= {'measure/clock.py'}
    # it labels a run, and the driver stamps its samples with it
    readers = {name for name, text in SOURCES.items() if 'wall_unix_s' in text}
    recorders = {'hooks/recorder.py', 'hooks/run_description.py', 'hooks/start.py'}
    assert readers <= {'measure/clock.py', 'measure/gpu.py', *recorders}
    # when a training ends is said by the clock on the wall
    words = ('local_time', 'seconds_until')
    asking = {name for name, text in SOURCES.items() if any(w in text for w in words)}
    assert asking == {
        'measure/clock.py',
        'measure/job_end.py',
        'hooks/end_source.py',
        'adviser/last_sign.py',
    }


def test_the_hook_neither_synchronises_nor_gathers():
    calls = ('synchronize', 'all_gather', 'all_reduce', 'barrier', 'reset_peak_memory')
    found = users(
        lambda node: isinstance(node, ast.Attribute) and node.attr.startswith(calls)
    )
    # a trial that is profiled waits for the card on purpose, and has no hook of ours
    assert found == {'experiment/trial_profile.py'}


def test_what_reads_a_gpu_knows_no_record():
    for name in ('measure/gpu.py', 'measure/cuda.py'):
        # its errors are texts
        source = SOURCES[name].replace('mmgpu_hooks.schema.text', '')
        assert 'mmgpu_hooks.schema' not in source


def nesting(node: ast.AST) -> int:
    """Returns the depth of nested blocks; ``elif`` counts as its ``if``."""
    inner = 0
    for child in ast.iter_child_nodes(node):
        is_elif = isinstance(node, ast.If) and node.orelse == [child]
        inner = max(inner, nesting(child) - (is_elif and isinstance(child, ast.If)))
    return inner + isinstance(node, NESTING)


def _count_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Returns a function's number of lines; a ``phrase`` call counts as one line."""
    said = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == 'phrase'
    ]
    return len(
        {*range(function.lineno, function.end_lineno or 0)}.difference(
            *(range(call.lineno + 1, (call.end_lineno or 0) + 1) for call in said)
        )
    )


def test_functions_are_short_and_flat():
    functions = {
        f'{name}: {node.name}': node
        for name in SOURCES
        for node in ast.walk(parse(name))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    long = {
        where for where, node in functions.items() if _count_lines(node) >= MOST_LINES
    }
    assert long <= STILL_LONGER
    # the function itself is no block
    deep = [where for where, node in functions.items() if nesting(node) > DEEPEST + 1]
    assert deep == []


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
    assert 'Traceback' not in done.stderr


def is_nameless(annotation: ast.AST) -> bool:
    """True if a type contains a tuple of three items or of unlike types."""
    for part in ast.walk(annotation):
        if isinstance(part, ast.Subscript) and ast.unparse(part.value) in _TUPLES:
            kinds = part.slice.elts if isinstance(part.slice, ast.Tuple) else []
            texts = [ast.unparse(kind) for kind in kinds]
            if '...' not in texts and (len(texts) > 2 or len(set(texts)) > 1):
                return True
    return False


def is_public(name: str) -> bool:
    return not name.startswith('_') or name == '__init__'


def list_types(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yields the type annotations of a statement, each with the name it is for."""
    types: list[ast.expr | None] = []
    name = ''
    if isinstance(node, ast.FunctionDef):
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        types = [*(argument.annotation for argument in arguments), node.returns]
        name = node.name
    elif isinstance(node, ast.AnnAssign):
        name, types = ast.unparse(node.target), [node.annotation]
    elif isinstance(node, ast.Assign):
        # a type may have a name of its own
        name, types = ast.unparse(node.targets[0]), [node.value]
    for found in types:
        if found is not None and is_public(name):
            yield name, found


def test_what_modules_give_each_other_has_names():
    nameless = {
        f'{name}: {what}'
        for name in (*SOURCES, *BENCHMARKS)
        for owner in ast.walk(parse(name))
        if isinstance(owner, ast.Module)
        or (isinstance(owner, ast.ClassDef) and is_public(owner.name))
        for node in owner.body
        for what, found in list_types(node)
        if is_nameless(found)
    }
    assert nameless == set()


@pytest.mark.parametrize(
    ('code', 'is_found'),
    [
        ('def find() -> tuple[int, str]: ...', True),
        ('def find() -> list[tuple[int, int, int]]: ...', True),
        ('def find(found: Sequence[tuple[str, Log]]) -> None: ...', True),
        ('Found = Sequence[tuple[str, Log]]', True),
        ('found: dict[str, tuple[int, float]] = {}', True),
        ('def find() -> tuple[int, int]: ...', False),
        ('def find() -> tuple[int, ...]: ...', False),
        ('def _find() -> tuple[int, str]: ...', False),
    ],
    ids=[
        'unlike kinds',
        'three',
        'an argument',
        'a type with a name',
        'a variable',
        'a pair',
        'many',
        'of the module',
    ],
)
def test_what_has_no_names_is_found(code, is_found):
    (node,) = ast.parse(code).body
    assert any(is_nameless(found) for _, found in list_types(node)) is is_found


def list_kinds(module: ast.Module) -> Iterator[str]:
    """Yields names of the public classes and type aliases of a module."""
    for node in module.body:
        name = node.name if isinstance(node, ast.ClassDef) else ''
        if isinstance(node, ast.Assign):
            name = ast.unparse(node.targets[0])
        # a constant is in capitals
        if name.isidentifier() and is_public(name) and not name.isupper():
            yield name


def test_the_name_of_a_class_or_a_type_is_for_one_thing():
    owners = defaultdict(set)
    for name in SOURCES:
        for kind in list_kinds(parse(name)):
            owners[kind].add(name)
    assert {kind: found for kind, found in owners.items() if len(found) > 1} == {}


def test_a_name_that_modules_import_is_of_one_of_them():
    origins = defaultdict(set)
    for name in SOURCES:
        for node in ast.walk(parse(name)):
            if isinstance(node, ast.ImportFrom) and imported(node) == ['mmgpu_hooks']:
                for alias in node.names:
                    origins[alias.name].add(node.module)
    # modules of packages may be called alike
    modules = {Path(name).stem for name in SOURCES}
    several = {name: found for name, found in origins.items() if len(found) > 1}
    assert {name: several[name] for name in several.keys() - modules} == {}


def test_what_runs_through_others_is_named_for_what_it_is():
    nameless = users(
        lambda node: (
            (isinstance(node, ast.Name) and node.id == 'one')
            or (isinstance(node, ast.arg) and node.arg == 'one')
        )
    )
    assert nameless == set()


def list_wired(module: ast.Module) -> list[str]:
    """Returns the attributes of other objects that a module assigns."""
    targets: list[ast.expr] = []
    for node in ast.walk(module):
        if isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
            targets.append(node.target)
    places = [
        place
        for target in targets
        for place in (target.elts if isinstance(target, ast.Tuple) else [target])
    ]
    return [
        ast.unparse(place)
        for place in places
        if isinstance(place, ast.Attribute) and ast.unparse(place.value) != 'self'
    ]


def test_what_hears_of_a_training_is_passed_to_constructors():
    # what replaces an attribute of somebody else's stands in measure/patches.py
    wired = {
        name: found
        for name in SOURCES
        if name.startswith('hooks/') and (found := list_wired(parse(name)))
    }
    assert wired == {}


def test_an_attribute_that_is_assigned_from_outside_is_found():
    code = 'probe.on_end, self.x = f, 1\nself.loader.end = f\nself.y += 1'
    assert list_wired(ast.parse(code)) == ['probe.on_end', 'self.loader.end']


def test_packages_import_only_packages_above_them():
    lint_imports = Path(sys.executable).with_name('lint-imports')
    done = subprocess.run([str(lint_imports)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
