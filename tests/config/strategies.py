"""Random configs: literal loaders, trees of bases in every spelling, garbage."""

from __future__ import annotations

from hypothesis import strategies as st

KEYS = ('batch_size', 'num_workers', 'prefetch_factor', 'pin_memory')
GAPS = (' ', '', '  ', '\n    ', '  # note\n    ', '\n    # own, line\n    ', '\n\n  ')
VALUES = st.sampled_from([0, 1, 4, 16, -1, 0.5, True, False, None, 'a#b,"\'c'])
ENTRIES = st.lists(
    st.tuples(st.sampled_from((*KEYS, 'dataset', 'sampler')), VALUES),
    unique_by=lambda pair: pair[0],
    max_size=5,
)


@st.composite
def literal_loaders(draw):
    """One display, with blanks and comments wherever they may stand."""
    entries = draw(ENTRIES)
    braces = draw(st.booleans())
    gap = st.sampled_from(GAPS)
    code = ('{' if braces else 'dict(') + draw(gap)
    for index, (key, value) in enumerate(entries):
        nested = f'dict(batch_size={value!r})' if key == 'dataset' else repr(value)
        code += f'{key!r}: {nested}' if braces else f'{key}={nested}'
        last = index == len(entries) - 1
        comma = ',' if not last or draw(st.booleans()) else ''
        # A gap in front of the comma may hold a comment as well.
        code += (draw(gap) if draw(st.integers(0, 9)) == 0 else '') + comma + draw(gap)
    return code + ('}' if braces else ')')


OWN = (
    '{x} = dict(batch_size=2, num_workers=2, dataset=dict(a=1))\n',
    '{x} = {{"num_workers": 2, "prefetch_factor": 2,}}\n',
    'only = 4\n{x} = dict(num_workers=only, batch_size=2)\n',
    '{x} = dict(num_workers=both, batch_size=both * 2)\n',
    '{x} = dict(**common, batch_size=2)\n',
    '{x} = dict(common, batch_size=2)\n',
    '{x} = {{**common, "persistent_workers": True}}\n',
    '{x} = dict(batch_size=1)\n{x}["num_workers"] = 3  # more\n',
    '{x} = dict(batch_size=1)\n{x}.update(num_workers=3, prefetch_factor=2)\n',
    '{x} = dict(batch_size=1)\n{x} = dict(num_workers=3, dataset=None)\n',
    '{x} = dict(num_workers=3)\n{x}["num_workers"] += 1\n',
    '{x} = dict(\n    # first\n    num_workers=3,  # n\n    dataset=dict(\n'
    '        num_workers=1))  # end\n',
    'if both:\n    {x} = dict(num_workers=2)\n',
    '{x} = dict(num_workers=2 if both else 3)\n',
    '{x} = common\n',
)
INHERITED = (
    '',
    '{x} = dict(dataset=dict(b=2))\n',
    '{x} = dict(_delete_=True, num_workers=1)\n',
    '{x} = dict(num_workers={{{{_base_.base_workers}}}})\n',
    '_base_.{x}.num_workers = 3\n',
    '_base_.{x}.update(dict(prefetch_factor=3))\n',
)
LAZY = (
    '',
    '{x}.update(prefetch_factor=3)\n',
    '{x}.update(dict(num_workers=1, dataset=dict(b=2)))\n',
    '{x}.num_workers = 5\n',
    '{x}["dataset"] = dict(c=3)\n',
)
LOADERS = ('train_dataloader', 'val_dataloader')
BASE = """\
base_workers = 3
train_dataloader = dict(batch_size=2, num_workers=2, persistent_workers=True)
val_dataloader = dict(batch_size=1, num_workers=0)
test_dataloader = val_dataloader
default_hooks = dict(timer=dict(type='IterTimerHook'))
custom_hooks = [dict(type='EMAHook')]
"""
HOOKS = (
    '',
    "default_hooks = dict(logger=dict(type='LoggerHook', interval=9))\n",
    "custom_hooks = [dict(type='OtherHook')]\n",
)


@st.composite
def trees(draw):
    """The files of an experiment by name; ``leaf.py`` is the one that is trained."""
    kind = draw(st.sampled_from(['flat', 'inherits', 'lazy']))
    loaders = draw(st.permutations(LOADERS))
    spellings = {'flat': OWN, 'inherits': OWN + INHERITED, 'lazy': OWN + LAZY}[kind]
    parts = [draw(st.sampled_from(spellings)).format(x=loader) for loader in loaders]
    if kind == 'flat':
        aliases = ('test_dataloader = val_dataloader\n', 'test_dataloader = dict()\n')
        parts.append(draw(st.sampled_from(aliases)))
    elif draw(st.booleans()):
        prefix = '_base_.' if kind == 'inherits' else ''
        parts.append(f'test_dataloader = {prefix}val_dataloader\n')
    parts.insert(draw(st.integers(0, len(parts))), draw(st.sampled_from(HOOKS)))
    if draw(st.integers(0, 3)) == 0:
        parts.append('seen = [k for k in dir() if k == "train_dataloader"]\n')
    head = {
        'flat': '',
        'inherits': '_base_ = ["./base.py"]\n',
        'lazy': 'from mmengine.config import read_base\n'
        'with read_base():\n    from .base import *\n',
    }[kind]
    used = ''.join(parts)
    variables = 'both = 2\ncommon = dict(num_workers=4, pin_memory=True)\n'
    ending = draw(st.sampled_from(['', '\n', '# the end\n']))
    return {'base.py': BASE, 'leaf.py': head + variables + used + ending}


PIECES = (
    *('train_dataloader', ' = ', 'dict(', ')', '{', '}', "'num_workers'"),
    *('num_workers=', '2', ', ', '\n', '\r\n', '\r', '\t', '    ', ':', '[', ']'),
    *('**', 'x', '#', '"""', "'", '\\', '.update(', 'if x:'),
    *('x = dict(num_workers=1)\n', 'train_dataloader = dict(num_workers=2)\n'),
    *('lambda: ', '\x0c', '\ufeff', 'café', '\x00', 'del ', '; ', '_base_ = '),
    *('{{_base_.x}}', 'print "x"\n', 'with read_base():\n'),
    *('global train_dataloader\n', 'match x:\n    case 1:\n        ', 'async '),
    *('await ', 'exec("train_dataloader = {}")\n'),
)


@st.composite
def _damaged(draw):
    text = draw(trees())['leaf.py'].replace('_base_ = ["./base.py"]', '')
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        stop = start + draw(st.sampled_from([0, 0, 1, 4]))
        text = text[:start] + draw(st.sampled_from(('', *PIECES))) + text[stop:]
    return text


def garbage():
    """Bytes between a config and noise."""
    pieces = st.lists(st.sampled_from(PIECES), max_size=12).map(''.join)
    texts = st.one_of(pieces, _damaged(), _damaged())
    return st.one_of(
        texts.map(str.encode), texts.map(str.encode), st.binary(max_size=9)
    )
