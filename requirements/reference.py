"""``make reference``: writes the pages of ``docs/en/reference/`` from docstrings.

Records are read as text, so that the string below a field is found; rules, causes and
verdicts are imported. `tests/architecture/test_docs.py` holds pages and code together.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from mmgpu_hooks.judge.causes import CAUSES  # noqa: E402
from mmgpu_hooks.judge.rules import RULES  # noqa: E402
from mmgpu_hooks.judge.verdict_names import VERDICTS  # noqa: E402
from mmgpu_hooks.schema.lines import KINDS  # noqa: E402

PACKAGE = ROOT / 'mmgpu_hooks'
FOLDER = ROOT / 'docs' / 'en' / 'reference'

RECORDED = 'schema/recorded.py'
"""Path of the module that defines all records of the evidence file."""

ANSWERED = (
    'schema/judged.py',
    'schema/tried.py',
    'schema/checkup.py',
    'schema/many_runs.py',
    'schema/memory.py',
    'schema/run.py',
    'judge/forecast.py',
    'model/workload.py',
)
"""Paths of the modules that define the records in JSON answers."""

CONSTANTS = ('model/prediction.py',)
"""Paths of further modules with constants named in docstrings of records."""


class Answer(NamedTuple):
    """JSON answer of one or more commands, with the place that documents its keys."""

    commands: str
    record: str = ''
    """Class whose fields are the answer's keys."""
    function: str = ''
    """``module.py:name`` of what writes the answer; its docstring has the keys."""
    condition: str = ''
    """Text after the commands in the heading, if a command has several answers."""


ANSWERS = (
    Answer('recommend', function='show/recommendation.py:render_json'),
    Answer(
        'recommend',
        function='show/framework_log.py:render_first_answer',
        condition='of a training without the hook',
    ),
    Answer('why', 'Why'),
    Answer('compare', 'RunComparison'),
    Answer('set, enable, disable', function='commands/rewriting.py:_render_json'),
    Answer('verify', 'Verification'),
    Answer('sweep', 'Sweep', 'commands/sweep.py:render_json'),
    Answer('save-bench', 'SaveBench', 'commands/save_bench.py:render_json'),
    Answer('profile', 'Profile'),
    Answer('predict', function='show/forecasts.py:render_forecast_json'),
    Answer(
        'estimate-memory', 'MemoryEstimate', 'show/forecasts.py:render_estimate_json'
    ),
    Answer('doctor', function='show/checkup.py:render_checkup_json'),
    Answer('runs', 'ManyRuns'),
)


def render_rules() -> str:
    """Returns the Markdown page of all rules, made from their docstrings."""
    parts = [
        '# What do the rule codes mean?\n\n'
        'Each finding carries the code of its rule; `mmgpu explain CODE` prints the '
        'same text. What is said of a card has met mocks and made-up statistics, and '
        '[no real card yet](../no-real-card.md).\n'
    ]
    for rule in RULES.values():
        text = rule.explanation.replace('``', '`')
        parts.append(f'## {rule.code}: {rule.title}\n\n{text}\n')
    return '\n'.join(parts)


def render_causes() -> str:
    """Returns the Markdown page of ``mmgpu why``'s causes, from their docstrings."""
    parts = [
        '# What do the causes of `mmgpu why` mean?\n\n'
        'The answer names one of them, or none; `mmgpu explain oom_host` prints the '
        'same text. [Which message has which cause?](../messages.md)\n'
    ]
    for cause in CAUSES.values():
        text = cause.page.replace('``', '`')
        listed = '\n'.join(f'- {said}' for said in cause.do)
        parts.append(f'## {cause.name}\n\n**{cause.title}.** {text}\n\n{listed}\n')
    return '\n'.join(parts)


def render_scalars() -> str:
    """Returns the Markdown page of all scalars, from ``scalars.py``'s docstring."""
    _, _, text = _docstring(_parse('hooks/scalars.py')).partition('\n\n')
    listed = text[text.index('\n\n`') : text.index('\n\nA figure that is unknown')]
    head, tail = text.split(listed)
    entries = re.findall(r'^(`\w+`) \((.*)\)\n((?: .*\n?)+)', listed, re.M)
    rows = [
        f'| {name} | {unit} | {_phrase(meaning)} |' for name, unit, meaning in entries
    ]
    table = '\n'.join(['| scalar | unit | meaning |', '| --- | --- | --- |', *rows])
    return f'# What do the scalars mean?\n\n{head}\n\n{table}{tail}\n'


def render_evidence() -> str:
    """Returns the Markdown page of the evidence file's records, from docstrings."""
    title, text = _docstring(_parse(RECORDED)).split('\n', 1)
    parts = [
        f'# {title}\n{text}',
        'What is said of a card has met mocks, and [no real card '
        'yet](../no-real-card.md).',
    ]
    classes = _list_classes(RECORDED)
    lines = {name: f'`{kind}`' for name, kind in _KIND_NAMES.items()}
    nested = {
        name: name
        for name in classes
        if name not in (*lines, 'Recorded', 'EvidenceLine')
    }
    for name, heading in {**lines, **nested}.items():
        node = classes[name]
        rows = [
            f'| `{field.name}` | {_describe_recorded(field.kind)} '
            f'| {_without_roles(_phrase(field.text))} |'
            for field in list_fields(node)
        ]
        table = '\n'.join(['| field | holds | meaning |', '| --- | --- | --- |', *rows])
        parts.append(f'## {heading}\n\n{_docstring(node)}\n\n{table}')
    return '\n\n'.join(parts) + '\n'


def render_answers() -> str:
    """Returns the Markdown page of all JSON answers, from their records' docstrings."""
    records = Records()
    parts = [_INTRODUCTION]
    for answer in ANSWERS:
        title = ', '.join(f'`mmgpu {name}`' for name in answer.commands.split(', '))
        title = f'{title} {answer.condition}'.rstrip()
        fields = list_keys(answer.function) if answer.function else []
        if answer.record:
            fields += list_fields(records.classes[answer.record])
        parts.append(f'## {title}\n\n{records.tabulate(fields)}')
    shown = [answer.record for answer in ANSWERS]
    while waiting := [name for name in records.linked if name not in shown]:
        name = waiting[0]
        shown.append(name)
        node = records.classes[name]
        text = records.describe(node)
        if _has_base(node, 'NamedTuple'):
            text += ' It is a list of these, in this order.'
        parts.append(f'## {name}\n\n{text}\n\n{records.tabulate(list_fields(node))}')
    rows = [f'| `{name}` | {title} |' for name, title in VERDICTS.items()]
    table = '\n'.join(['| name | title |', '| --- | --- |', *rows])
    return '\n\n'.join([*parts, f'## Verdicts\n\n{table}']) + '\n'


_INTRODUCTION = """# What do the JSON answers hold?

`--format json` prints one object. Its `version` is 1; it is raised when a key changes
its meaning or goes away. What is unknown is `null`, never 0. Units are in the names:
`_s` seconds, `_hours`, `_bytes`, `_gib`, `_share` (0 to 1), `_pct` (per cent),
`_ratio`.

An object with sentences has `facts`: the figures that they were made of, by the key of
the sentence, so that no program takes a sentence apart. Their names end in a unit, too,
or in the noun that is counted (`busy_workers`). `findings[0].facts.detail` of MG101 is
`{"data_wait_share": 0.514, "data_wait_s": 0.21, "iter_s": 0.41,
"steady_iterations": 170}`. A text within a text has a group of its own
(`verdict.facts.sentence.why`); a list of sentences has a list. Sentences are in English
in every [language](../languages.md)."""

PAGES = {
    'answers.md': render_answers,
    'evidence.md': render_evidence,
    'rules.md': render_rules,
    'scalars.md': render_scalars,
    'causes.md': render_causes,
}
"""Functions that render the reference pages, by file name."""


class Field(NamedTuple):
    """Field of a record, or key of a JSON answer, as written in the source."""

    name: str
    kind: ast.expr
    """Syntax node of the field's type annotation."""
    text: str
    """Meaning of the field; empty if the name says enough."""


class Records:
    """Record classes in JSON answers, with the ones that tables have linked so far."""

    def __init__(self) -> None:
        self.classes: dict[str, ast.ClassDef] = {}
        """Record classes in JSON answers, by their names."""
        self.linked: dict[str, None] = {}
        """Names of classes in the order in which tables linked them."""
        self._addresses: dict[str, str] = {}
        for name in _list_classes(RECORDED):
            kind = _KIND_NAMES.get(name, name)
            self._addresses[name] = f'evidence.md#{kind.lower()}'
        for module in ANSWERED:
            for name, node in _list_classes(module).items():
                self.classes[name] = node
                self._addresses[name] = f'#{name.lower()}'
        self._constants = read_constants()

    def tabulate(self, fields: Sequence[Field]) -> str:
        """Returns a Markdown table of fields with their types and meanings."""
        rows = [
            f'| `{field.name}` | {self._describe_type(field.kind)} '
            f'| {self._phrase(field.text or self._read_title(field.kind))} |'
            for field in fields
        ]
        return '\n'.join(['| key | holds | meaning |', '| --- | --- | --- |', *rows])

    def describe(self, node: ast.ClassDef) -> str:
        """Returns the docstring of a record class as Markdown."""
        return self._phrase(_docstring(node), folds=False)

    def _read_title(self, hint: ast.expr) -> str:
        """Returns the first docstring line of the record that a type names."""
        names = (node.id for node in ast.walk(hint) if isinstance(node, ast.Name))
        nodes = [self.classes[name] for name in names if name in self.classes]
        return _docstring(nodes[0]).partition('\n\n')[0] if nodes else ''

    def _phrase(self, text: str, *, folds: bool = True) -> str:
        text = _phrase(text) if folds else text.replace('`None`', '`null`')
        return re.sub(
            r':\w+:`(?:[\w.]+\.)?(\w+)`',
            lambda found: self._constants.get(found[1], f'`{found[1]}`'),
            text,
        )

    def _describe_type(self, hint: ast.expr) -> str:
        if isinstance(hint, ast.BinOp):
            return f'{self._describe_type(hint.left)}, or null'
        if not isinstance(hint, ast.Subscript):
            return self._link(ast.unparse(hint))
        inner = hint.slice.elts if isinstance(hint.slice, ast.Tuple) else [hint.slice]
        kind = ast.unparse(hint.value)
        if kind == 'Optional':
            return f'{self._describe_type(inner[0])}, or null'
        form = {'Mapping': 'object: {} by name'}.get(kind, 'list: {}')
        return form.format(
            self._describe_type(inner[-1] if kind == 'Mapping' else inner[0])
        )

    def _link(self, name: str) -> str:
        if name in self.classes:
            self.linked[name] = None
        if name in self._addresses:
            return f'[{name}]({self._addresses[name]})'
        return _TYPES[name]


_KIND_NAMES = {kind.__name__: name for name, kind in KINDS.items()}


def read_constants() -> dict[str, str]:
    """Returns constant tuples of texts, formatted for a sentence, by their names."""
    found = {'VERDICTS': '[the verdicts](#verdicts)'}
    for module in (RECORDED, *ANSWERED, *CONSTANTS):
        for node in _parse(module).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
                texts = [_get_text(part) for part in node.value.elts]
                if all(texts):
                    words = ', '.join(f'`{text}`' for text in texts)
                    found[ast.unparse(node.targets[0])] = words
    return found


def list_keys(function: str) -> list[Field]:
    """Returns the keys listed below ``Keys:`` in a function's or module's docstring.

    Args:
        function: ``module.py:name``; where its own docstring has none, that of the
            module does.
    """
    module, _, _ = function.partition(':')
    texts = map(_docstring, (_find_function(function), _parse(module)))
    text = next(text for text in texts if 'Keys:' in text)
    _, _, listed = text.partition('Keys:\n')
    listed, _, _ = listed.partition('\n\n')
    entries = re.split(r'^    (?=\w)', listed, flags=re.M)[1:]
    found = [re.match(r'(\w+) \((.*?)\):(.*)', entry, re.S) for entry in entries]
    return [
        Field(entry[1], ast.parse(entry[2], mode='eval').body, entry[3])
        for entry in found
        if entry is not None
    ]


def list_written(function: str) -> list[str]:
    """Returns the keys that a function's code writes into a JSON answer.

    Those of the call of ``to_json``, and of each dictionary that is given a name of
    its own for it.

    Args:
        function: As in :func:`list_keys`.
    """
    keys = []
    for node in ast.walk(_find_function(function)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == 'to_json':
            keys += [word.arg for word in node.keywords if word.arg is not None]
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            held = node.value.keys if isinstance(node.value, ast.Dict) else []
            keys += filter(None, map(_get_text, held))
    return keys


def list_fields(node: ast.ClassDef) -> list[Field]:
    """Returns the fields of a record class, each with its attribute docstring."""
    found = []
    for field, after in zip(node.body, [*node.body[1:], None]):
        if isinstance(field, ast.AnnAssign):
            value = after.value if isinstance(after, ast.Expr) else None
            text = _get_text(value) or ''
            found.append(Field(ast.unparse(field.target), field.annotation, text))
    return found


def _phrase(text: str) -> str:
    text = ' '.join(text.split()).replace('``', '`')
    return text.replace('`None`', '`null`').replace('|', '\\|')


def _without_roles(text: str) -> str:
    return re.sub(r':\w+:(`\w+`)', r'\1', text)


def _describe_recorded(hint: ast.expr) -> str:
    """Returns the type of an evidence field as Markdown, without ``Optional``."""
    if isinstance(hint, ast.Name):
        return _TYPES.get(hint.id) or f'[{hint.id}](#{hint.id.lower()})'
    assert isinstance(hint, ast.Subscript)
    inner = hint.slice.elts if isinstance(hint.slice, ast.Tuple) else [hint.slice]
    kind = ast.unparse(hint.value)
    if kind == 'Optional':
        return _describe_recorded(inner[0])
    form = {'Mapping': 'object: {} by name', 'Tuple': 'list: {}'}[kind]
    return form.format(_describe_recorded(inner[-1] if kind == 'Mapping' else inner[0]))


_TYPES = {
    'Any': 'any value',
    'Count': 'whole number',
    'Number': 'number',
    'str': 'text',
    'Text': 'text',
    'int': 'whole number',
    'bool': 'true or false',
    'CacheFault': 'text',
    'Ending': 'text',
    'MemoryBound': 'text',
    'MemoryPhase': 'text',
    'TunedAction': 'text',
    'TunedReason': 'text',
    'TunedLoader': 'text',
    'float': 'number',
    'Plain': 'true or false, number or text',
}


def _parse(module: str) -> ast.Module:
    return ast.parse((PACKAGE / module).read_text())


def _list_classes(module: str) -> dict[str, ast.ClassDef]:
    tree = _parse(module)
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _has_base(node: ast.ClassDef, name: str) -> bool:
    return name in map(ast.unparse, node.bases)


def _find_function(place: str) -> ast.FunctionDef:
    module, _, name = place.partition(':')
    return next(
        node
        for node in ast.walk(_parse(module))
        if isinstance(node, ast.FunctionDef) and node.name == name
    )


def _docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    return (ast.get_docstring(node) or '').replace('``', '`')


def _get_text(node: ast.expr | None) -> str | None:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text else None


def main() -> None:
    """Writes all reference pages."""
    for name, render in PAGES.items():
        (FOLDER / name).write_text(render())


if __name__ == '__main__':
    main()
