"""What a trace of a card says: parts, modules, launches; traces here are made up."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from mmgpu_hooks.experiment.profile import (
    LABEL,
    MODULE,
    PLAIN,
    STEP,
    WARM_UP,
    list_modules,
    summarize_trace,
)
from mmgpu_hooks.schema.tried import Profile
from mmgpu_hooks.show.experiments import describe_profile
from mmgpu_hooks.show.terminal import render

FACTS = {'device': 'H100', 'capability': [9, 0], 'amp': None, 'flags': {}}
NODE = 'autograd::engine::evaluate_function: ConvolutionBackward0'


def span(kind: str, name: str, start: float, end: float, tid: int = 1, **more: Any):
    times = {'ts': start, 'dur': end - start}
    return {'ph': 'X', 'cat': kind, 'name': name, 'tid': tid, **times, 'args': more}


def label(name: str, start: float, end: float):
    return span('user_annotation', name, start, end)


NUMBERS = itertools.count()


def launched(name: str, at: float, start: float, end: float):
    """A launch on the host, and what it gives the card to do."""
    key, kind = next(NUMBERS), 'kernel' if 'Memcpy' not in name else 'gpu_memcpy'
    thread = 2 if name == 'wgrad' else 1
    return [
        span('cuda_runtime', 'cudaLaunchKernel', at, at + 5, thread, correlation=key),
        span(kind, name, start, end, 7, correlation=key),
    ]


STEP_ON_A_CARD = [
    label('ProfilerStep#9', 0, 1010),
    label(STEP, 0, 1000),
    label(f'{MODULE}data_preprocessor', 10, 60),
    *launched('Memcpy HtoD (Pageable -> Device)', 20, 50, 100),
    label(MODULE, 100, 400),
    label(f'{MODULE}neck', 110, 300),
    span('cpu_op', 'aten::conv2d', 120, 190, **{'Sequence number': 5}),
    span('cpu_op', 'aten::cudnn_convolution', 130, 180, **{'Sequence number': 5}),
    *launched('sm90_gemm', 150, 200, 500),
    label(f'{LABEL}backward', 400, 700),
    # of a thread of autograd's own
    span('cpu_op', NODE, 420, 600, 2, **{'Sequence number': 5}),
    *launched('wgrad', 450, 600, 800),
    # on another stream meanwhile
    *launched('bias', 460, 700, 750),
    label(f'{LABEL}optimizer', 700, 750),
    *launched('adam', 710, 820, 900),
    {'ph': 'i', 'name': 'an instant', 'ts': 5},
]


def profile_of(events: list[Any], plain_us: float = 1000.0) -> Profile:
    plain_s = [1.0] * WARM_UP + [plain_us / 1e6] * PLAIN
    facts = {**FACTS, 'seconds': [*plain_s, 1.0, 0.001]}
    return summarize_trace(events, facts, 1, 'w')


def test_kernels_belong_where_they_were_launched():
    profile = profile_of(STEP_ON_A_CARD[::-1])
    parts = {
        name: (round(1e6 * part.busy_s), round(1e6 * part.idle_s))
        for name, part in profile.parts.items()
    }
    assert parts == {
        'preprocessor': (0, 0),
        'copies': (50, 50),
        'forward': (300, 100),
        'backward': (200, 100),
        'optimizer': (80, 20),
        'other': (0, 100),
    }
    (neck,) = profile.modules
    assert neck.name == 'neck'
    assert neck.forward_s == pytest.approx(400e-6)
    assert neck.backward_s == pytest.approx(300e-6)
    assert profile.kernels == 5
    assert profile.products_pct == pytest.approx(100 * 500 / 630)


@pytest.mark.parametrize(
    ('plain_us', 'bound', 'words'),
    [
        (1000, 'launches', 'Launch-bound'),
        (800, 'both', 'Launches and kernels'),
        (650, 'kernels', 'Kernel-bound'),
        (600, 'kernels', 'Kernel-bound'),
    ],
)
def test_whether_launches_or_kernels_decide(plain_us: float, bound: str, words: str):
    # the profiler slows launches, so a step without it is judged
    profile = profile_of(STEP_ON_A_CARD, plain_us)
    assert profile.bound == bound
    text = render(describe_profile(profile))
    assert text.startswith(words)
    assert 'it has 5 kernels of 126 us' in ' '.join(text.split())


def test_without_kernels_the_host_is_shown_and_the_reason_said():
    host = [one for one in STEP_ON_A_CARD if one.get('tid') != 7]
    profile = profile_of(host)
    assert (profile.bound, profile.kernels) == (None, None)
    assert 'CUPTI' in (profile.bound_reason or '')
    spent = [part.busy_s + part.idle_s for part in profile.parts.values()]
    assert sum(spent) == pytest.approx(0.001)
    # 70 us of an operator in a range of 300
    forward = profile.parts['forward']
    assert forward.busy_s == pytest.approx(70e-6)
    assert forward.idle_s == pytest.approx(230e-6)
    assert 'unknown' in render(describe_profile(profile))


AMP = {'amp': 'float16', 'bound': 'kernels', 'products_pct': 80.0}


@pytest.mark.parametrize(
    ('facts', 'said'),
    [
        (AMP, 'AMP is on (float16). Convolutions and matrix products take 80 %'),
        ({**AMP, 'capability': (6, 1)}, 'brings little: this card has no tensor cores'),
        ({**AMP, 'bound': 'launches'}, 'brings little: the card waits for launches'),
        ({**AMP, 'products_pct': 8.0}, 'brings little: little of the busy time'),
        (
            {'amp': None, 'bound': 'launches'},
            'AMP is off, and would bring little: the card waits',
        ),
        ({**AMP, 'amp': None}, 'AMP is off. Convolutions'),
        ({'capability': None, 'products_pct': None}, 'AMP is off.'),
    ],
)
def test_what_is_said_of_amp(facts: dict[str, Any], said: str):
    text = render(describe_profile(replace(profile_of(STEP_ON_A_CARD), **facts)))
    assert said in ' '.join(text.split())


def test_parts_that_are_not_the_step_are_said_to_be():
    profile = profile_of(STEP_ON_A_CARD)
    assert 'off the step' not in render(describe_profile(profile))
    slow = replace(profile, step_s=0.0011)
    assert '9.1 % off the step by the clock' in render(describe_profile(slow))


DETECTOR = {
    '': 3,
    'data_preprocessor': 2,
    'backbone.stem.conv': 8,
    **{f'backbone.stage{n}.{part}': 5 for n in range(1, 5) for part in 'ab'},
    'neck': 17,
    'bbox_head': 20,
    'bbox_head.convs.0': 10,
}


@pytest.mark.parametrize(
    ('spent', 'names'),
    [
        (
            DETECTOR,
            [
                *('bbox_head', 'neck', 'backbone.stage1'),
                *('backbone.stage2', 'backbone.stage3'),
            ],
        ),
        # the losses of a head are not in what it contains
        (
            {'head': 60, 'head.conv': 20, 'net.a': 9, 'net.b': 8, 'neck': 3},
            ['head', 'net.a', 'net.b', 'neck'],
        ),
        # one that takes nearly all is divided, though there are five others
        (
            {**{f'm{n}': 1 for n in range(5)}, 'net.a': 40, 'net.b': 50},
            ['net.b', 'net.a', 'm0', 'm1', 'm2'],
        ),
        ({'module.net.only': 1}, ['module.net.only']),
        ({'': 1}, ['']),
        ({}, ['']),
    ],
)
def test_no_module_of_the_five_contains_another(
    spent: dict[str, int], names: list[str]
):
    found = list_modules({name: (2 * s, s) for name, s in spent.items()})
    assert [one.name for one in found] == names
    assert not [
        (a, b) for a in names for b in names if a != b and f'{b}.'.startswith(f'{a}.')
    ]
