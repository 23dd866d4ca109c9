"""Random edits of random configs: what was asked for and no more, or refused."""

from __future__ import annotations

import io
import tempfile
import tokenize
from pathlib import Path

import pytest
from config.strategies import garbage, literal_loaders, trees
from hypothesis import given, settings
from hypothesis import strategies as st

from mmgpu_hooks.config.loading import LoadError, read_config
from mmgpu_hooks.config.outcome import ABSENT, REMOVE, Options
from mmgpu_hooks.config.rewrite import disable_hook, enable_hook, rewrite_config

pytest.importorskip('mmengine.config', reason='the proof loads configs with MMEngine')

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
KEYS = ('batch_size', 'num_workers', 'prefetch_factor', 'persistent_workers')
OF_WORKERS = ('prefetch_factor', 'persistent_workers')
VALUES = st.sampled_from([0, 1, 4, 16, True, False, None, 0.5, 'a#b,"\'c', REMOVE])
DOTTED = st.sampled_from([f'{loader}.{key}' for loader in LOADERS for key in KEYS])
SIZES = st.sampled_from([1, 4, 16, None, REMOVE])
WANTED = st.dictionaries(DOTTED, VALUES, min_size=1, max_size=4)


def write_tree(folder, tree):
    for name, text in tree.items():
        Path(folder, name).write_bytes(text.encode())
    return Path(folder, 'leaf.py')


def listing(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def load(path):
    return {path: repr(value) for path, value in read_config(path).items()}


def comments(text):
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def check(source, before, outcome, wanted):
    """Compares with MMEngine's view, without the product's own proof."""
    after = load(outcome.target)
    for dotted, value in wanted.items():
        path = tuple(dotted.split('.'))
        if value is REMOVE:
            resting = [repr(one) for one in ABSENT.get(path[1], ())]
            assert path not in after or after[path] in resting
        else:
            assert after[path] == repr(value)
    free = {tuple(dotted.split('.')) for dotted in wanted}
    # what num_workers=0 takes out, and a variable that only a setting uses
    free |= {(path[0], key) for path in free for key in (*OF_WORKERS, 'timeout')}
    free |= {('only',)}
    left = {path: value for path, value in before.items() if path not in free}
    assert left == {path: value for path, value in after.items() if path not in free}
    for loader in LOADERS:
        if f'{loader}.num_workers' in wanted and after.get((loader, 'num_workers')) in (
            '0',
            'False',
        ):
            for key in OF_WORKERS:
                assert after.get((loader, key)) in (None, 'None', 'False', '0')


@settings(max_examples=100, deadline=None)
@given(tree=trees(), wanted=WANTED)
def test_any_edit_of_any_tree(tree, wanted):
    with tempfile.TemporaryDirectory() as folder:
        source = write_tree(folder, tree)
        files = listing(folder)
        outcome = rewrite_config(source, wanted)
        if outcome.status != 'rewritten':
            assert (outcome.status == 'refused') is (outcome.reason is not None)
            assert listing(folder) == files
            return
        assert {**files, 'leaf_recommended.py': outcome.text.encode()} == listing(
            folder
        )
        check(source, load(source), outcome, wanted)
        again = rewrite_config(outcome.target, wanted)
        assert (again.status, again.reason) == ('unchanged', None)
        if REMOVE not in outcome.changes.values():
            assert comments(outcome.text) == comments(tree['leaf.py'])


@settings(max_examples=30, deadline=None)
@given(tree=trees())
def test_the_hook_goes_in_and_out_of_any_tree(tree):
    with tempfile.TemporaryDirectory() as folder:
        source = write_tree(folder, tree)
        before = load(source)
        outcome = enable_hook(source, Options(in_place=True))
        assert outcome.status == 'rewritten', outcome.reason
        after = load(source)
        added = {path for path in after if path not in before}
        assert {path[:2] for path in added} <= {
            ('default_hooks',),
            ('default_hooks', 'gpu_efficiency'),
        }
        assert {path: after[path] for path in before} == before
        assert enable_hook(source, Options(in_place=True)).status == 'unchanged'
        outcome = disable_hook(source, Options(in_place=True))
        assert outcome.status == 'rewritten', outcome.reason
        assert source.read_bytes() == tree['leaf.py'].encode()


@settings(max_examples=60, deadline=None)
@given(loader=literal_loaders(), value=SIZES, newline=st.sampled_from(['\n', '\r\n']))
def test_any_literal_loader(loader, value, newline):
    head, tail = '# head\nx = 1\n', '  # tail\ny = 2\n'
    text = f'{head}train_dataloader = {loader}{tail}'
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, 'c.py')
        source.write_bytes(text.replace('\n', newline).encode())
        wanted = {'train_dataloader.batch_size': value}
        outcome = rewrite_config(source, wanted)
        assert outcome.status in ('rewritten', 'unchanged'), (text, outcome.reason)
        if outcome.status == 'unchanged':
            return
        written = outcome.target.read_bytes().decode()
        check(source, load(source), outcome, wanted)
    assert written.count('\r\n') == (written.count('\n') if newline == '\r\n' else 0)
    plain = written.replace('\r\n', '\n')
    assert plain.startswith(head)
    assert plain.endswith(tail)


@settings(max_examples=100, deadline=None)
@given(raw=garbage(), in_place=st.booleans())
def test_fuzzing_never_crashes_nor_writes_what_does_not_load(raw, in_place):
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, 'c.py')
        source.write_bytes(raw)
        wanted = {'train_dataloader.num_workers': 8}
        outcome = rewrite_config(source, wanted, in_place=in_place)
        if outcome.status != 'rewritten':
            assert listing(folder) == {'c.py': raw}
            return
        try:
            loaded = read_config(outcome.target)
        except LoadError as error:
            raise AssertionError(raw) from error
        assert loaded[('train_dataloader', 'num_workers')] == 8
