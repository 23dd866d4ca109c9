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


# Attributes that modules assign from outside. Those of others are no patches:
# the head of measure/patches.py says why.
ASSIGNED = {
    'measure/annotation_cache.py': {'array._source'},
    'measure/flight_recorder.py': {'logger.disabled'},
    # what is asked of NVML
    'measure/gpu.py': {
        'request.version',
        'request.numMetrics',
        'request.sample1',
        'request.sample2',
        'metric.metricId',
    },
    'measure/loader/switch.py': {
        'loader._iterator',
        'live._sampler_iter',
        'heir._index_sampler',
        'heir._sampler_iter',
        'self._holder._iterator',
    },
    'measure/loader/worker.py': {
        'fetcher.dataset',
        'iterator._worker_init_fn',
        'kind.fetch',
    },
    'measure/patches.py': {'owner.*'},
    'optimize/annotations.py': {'dataset.data_bytes', 'dataset.data_address'},
    'optimize/bundles.py': {'queue.put'},
    'optimize/coco_metric.py': {
        'metric._coco_api',
        'metric._coco_api.loadRes',
        'metric.results2json',
        'evaluation.evaluate',
        'evaluation.accumulate',
        'evaluation.eval',
        'given.imgIds',
        'asked.imgIds',
        'given.catIds',
        'asked.catIds',
        'given.useCats',
        'given.maxDets',
        'asked.maxDets',
        'given.iouThrs',
        'truth.dataset',
    },
    'optimize/ema.py': {'ema.steps'},
    'optimize/history.py': {'buffer.__class__'},
    'optimize/metric_check.py': {'metric.dataset_meta'},
    'optimize/param_groups.py': {
        'optimizer.param_groups',
        'group.__class__',
        'param.grad',
        'twin.grad',
    },
    'optimize/resume.py': {
        'self._wrapper._iterator',
        'self._wrapper._epoch',
        'live._sampler_iter',
        'loader._iterator',
        'fresh._index_sampler',
    },
}

# Records of ours that these modules fill; none of them is called back.
FILLED = {
    'measure/cuda.py': {'step.stream', 'step.is_ended'},
    'measure/dataset_start.py': {
        'found.*',
        'found.bytes',
        'found.cpu_s',
        'found.files',
        'found.read_cpu_s',
        'found.samples',
        'found.wall_s',
    },
    'measure/ledger.py': {'window.wait_cpu_s'},
    'measure/loader/pipeline.py': {'running[-1].inner_s'},
    'measure/loader/probe.py': {'tally.made'},
    'measure/validation_parts.py': {'running.seconds', 'running.longest_s'},
    'optimize/annotations.py': {'found.is_cached', 'found.is_kept', 'found.refused'},
    'optimize/bundles.py': {
        '_state.is_sending',
        '_state.bundle',
        '_state.find_arrival',
    },
    'optimize/history.py': {'self._log.is_lent', 'self._counts.is_lent'},
}


def list_targets(node: ast.AST) -> list[ast.expr]:
    """Returns what a syntax node assigns, tuples and lists as a whole."""
    if isinstance(node, ast.Assign):
        return node.targets
    if isinstance(
        node,
        (ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor, ast.comprehension),
    ):
        return [node.target]
    if isinstance(node, ast.withitem) and node.optional_vars is not None:
        return [node.optional_vars]
    setters = 'setattr', 'object.__setattr__'
    if isinstance(node, ast.Call) and ast.unparse(node.func) in setters:
        owner, name, _ = node.args
        attribute = str(name.value) if isinstance(name, ast.Constant) else '*'
        return [ast.Attribute(owner, attribute, ast.Store())]
    return []


def list_places(target: ast.expr) -> Iterator[ast.expr]:
    """Yields the single targets of an assignment, without tuples, lists and stars."""
    if isinstance(target, ast.Starred):
        yield from list_places(target.value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from list_places(part)
    else:
        yield target


def list_wired(module: ast.Module) -> set[str]:
    """Returns the attributes of other objects that a module assigns."""
    return {
        ast.unparse(place)
        for node in ast.walk(module)
        for target in list_targets(node)
        for place in list_places(target)
        if isinstance(place, ast.Attribute) and ast.unparse(place.value) != 'self'
    }


def test_what_hears_of_a_training_is_passed_to_constructors():
    wired = {
        name: found
        for name in SOURCES
        if name.startswith(('hooks/', 'measure/', 'optimize/'))
        and (found := list_wired(parse(name)))
    }
    known = {
        name: ASSIGNED.get(name, set()) | FILLED.get(name, set())
        for name in ASSIGNED.keys() | FILLED.keys()
    }
    assert wired == known


@pytest.mark.parametrize(
    ('code', 'found'),
    [
        ('self.x = probe.f\nself.y += 1\nprobe.end()', set()),
        ('self.loader.end = f', {'self.loader.end'}),
        ('probe.ends += 1', {'probe.ends'}),
        ('probe.on_end, [self.x, *probe.rest] = f', {'probe.on_end', 'probe.rest'}),
        ('for probe.end, i in f: pass', {'probe.end'}),
        ('[1 for probe.end in f]', {'probe.end'}),
        ('with f() as probe.end: pass', {'probe.end'}),
        ("setattr(probe, 'end', f)", {'probe.end'}),
        ('object.__setattr__(probe, name, f)', {'probe.*'}),
        ("setattr(self, 'end', f)", set()),
    ],
    ids=[
        'own attributes',
        'of a part',
        'added to',
        'in a tuple',
        'by a loop',
        'by a comprehension',
        'by with',
        'by setattr',
        'by a name that varies',
        'own by setattr',
    ],
)
def test_an_attribute_that_is_assigned_from_outside_is_found(code, found):
    assert list_wired(ast.parse(code)) == found


def test_packages_import_only_packages_above_them():
    lint_imports = Path(sys.executable).with_name('lint-imports')
    done = subprocess.run([str(lint_imports)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
