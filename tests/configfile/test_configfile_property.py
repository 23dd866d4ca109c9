"""Whatever way a literal loader is written: exactly what was asked, or refused."""

from __future__ import annotations

import ast
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmgpu_hooks.configfile.outcome import REMOVE
from mmgpu_hooks.configfile.rewrite import rewrite_config

pytest.importorskip('mmengine.config', reason='the proof loads configs with MMEngine')

KEYS = ('batch_size', 'num_workers', 'prefetch_factor', 'pin_memory')
GAPS = (' ', '', '  ', '\n    ', '  # note\n    ', '\n    # own, line\n    ', '\n\n  ')
VALUES = st.sampled_from([0, 1, 4, 16, -1, 0.5, True, False, None, 'a#b,"\'c'])
ENTRIES = st.lists(
    st.tuples(st.sampled_from((*KEYS, 'dataset', 'sampler')), VALUES),
    unique_by=lambda pair: pair[0],
    max_size=5,
)


@st.composite
def loaders(draw):
    entries = draw(ENTRIES)
    braces = draw(st.booleans())
    gap = st.sampled_from(GAPS)
    code = ('{' if braces else 'dict(') + draw(gap)
    for index, (key, value) in enumerate(entries):
        nested = f'dict(num_workers={value!r})' if key == 'dataset' else repr(value)
        code += f'{key!r}: {nested}' if braces else f'{key}={nested}'
        last = index == len(entries) - 1
        comma = ',' if not last or draw(st.booleans()) else ''
        # A gap in front of the comma may hold a comment as well.
        code += (draw(gap) if draw(st.integers(0, 9)) == 0 else '') + comma + draw(gap)
    return code + ('}' if braces else ')')


WANTED = st.dictionaries(
    st.sampled_from(KEYS), st.one_of(VALUES, st.just(REMOVE)), min_size=1
)


def evaluate(text):
    space = {}
    exec(compile(text, 'c.py', 'exec'), space)
    return space['train_dataloader']


def same(left, right):
    return repr(sorted(left.items())) == repr(sorted(right.items()))


@settings(max_examples=60, deadline=None)
@given(loader=loaders(), wanted=WANTED, newline=st.sampled_from(['\n', '\r\n']))
def test_any_literal_loader(loader, wanted, newline):
    head, tail = '# head\nx = 1\n', '  # tail\ny = 2\n'
    text = f'{head}train_dataloader = {loader}{tail}'
    expected = evaluate(text)
    for key, value in wanted.items():
        if value is REMOVE:
            expected.pop(key, None)
        else:
            expected[key] = value
    asked = {f'train_dataloader.{key}': value for key, value in wanted.items()}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, 'c.py')
        source.write_bytes(text.replace('\n', newline).encode())
        outcome = rewrite_config(source, asked)
        assert outcome.status in ('rewritten', 'unchanged'), (text, outcome.reason)
        if outcome.status == 'unchanged':
            found = evaluate(text)
            # None stands for a removed key where PyTorch takes it so.
            found = {k: v for k, v in found.items() if wanted.get(k) is not REMOVE}
            expected = {k: v for k, v in expected.items() if k in found}
            assert same(found, expected)
            return
        written = outcome.target.read_bytes().decode()
    assert written.count('\r\n') == (written.count('\n') if newline == '\r\n' else 0)
    plain = written.replace('\r\n', '\n')
    assert plain.startswith(head)
    assert plain.endswith(tail)
    ast.parse(plain)
    found = evaluate(plain)
    for key, value in wanted.items():
        if value is REMOVE and found.get(key, 0) is None:
            found.pop(key)
    assert same(found, expected)
