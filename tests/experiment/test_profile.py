"""Tests the summary of a profile on synthetic GPU events: parts, modules, launches."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from torch.autograd.profiler_util import Interval

from mmgpu_hooks.experiment import trial_profile
from mmgpu_hooks.experiment.profile import (
    LABEL,
    MODULE,
    STEP,
    list_modules,
    summarize_steps,
)
from mmgpu_hooks.experiment.trial_profile import HostClock
from mmgpu_hooks.schema.tried import HostPart, Profile
from mmgpu_hooks.show.experiments import describe_profile
from mmgpu_hooks.show.terminal import render

NODE = 'autograd::engine::evaluate_function: ConvolutionBackward0'


def event(name: str, parent: Any = None, *kernels: tuple[str, float], **more: Any):
    """Returns a fake torch.profiler event; ``self_us`` is its own host time."""
    return SimpleNamespace(
        name=name,
        cpu_parent=parent,
        kernels=[SimpleNamespace(name=n, duration=us) for n, us in kernels],
        sequence_nr=more.get('number', -1),
        time_range=Interval(*more.get('span', (0.0, 0.0))),
        device_type=SimpleNamespace(name=more.get('device', 'CPU')),
        cpu_time_total=1000.0,
        self_cpu_time_total=more.get('self_us', 0.0),
    )


def make_step(*, on_card: bool = True) -> list[Any]:
    step = event(STEP)
    preprocessor = event(f'{MODULE}data_preprocessor', step)
    model = event(MODULE, step)
    neck = event(f'{MODULE}neck', model, (f'{MODULE}neck', 400.0))
    conv = event('aten::conv2d', neck, number=5, self_us=20.0)
    # of a thread of autograd's own
    node = event(NODE, number=5, self_us=30.0)
    optimizer = event(f'{LABEL}optimizer', step)
    events = [
        event('aten::copy_', None, ('before the step', 70.0)),
        step,
        preprocessor,
        event('aten::to', preprocessor, ('Memcpy HtoD (Pageable -> Device)', 50.0)),
        event('aten::mul', preprocessor, ('scale', 10.0)),
        model,
        neck,
        conv,
        event('aten::cudnn_convolution', conv, ('sm90_gemm', 290.0), self_us=50.0),
        # a range that torch lists on the card once more, around what runs in it
        event(f'{MODULE}neck', device='CUDA', span=(100.0, 500.0)),
        event('sm90_gemm', device='CUDA', span=(100.0, 390.0)),
        event('side', device='CUDA', span=(350.0, 450.0)),
        # on a stream of its own: 40 us beside the one before
        event('aten::add', neck, ('side', 100.0)),
        event(f'{LABEL}backward', step),
        node,
        event('aten::convolution_backward', node, ('wgrad', 150.0), ('bias', 50.0)),
        optimizer,
        event('step#Adam', optimizer, ('step#Adam', 80.0)),
        event('aten::_foreach_add_', optimizer, ('adam', 80.0)),
        event('aten::mul', step, ('scale the loss', 20.0)),
    ]
    for recorded in events:
        recorded.kernels *= on_card
    return events


def profile_of(plain_us: float = 1000.0, *, on_card: bool = True) -> Profile:
    events = make_step(on_card=on_card)
    steps = summarize_steps(events, 1, plain_us / 1e6, on_card=on_card)
    facts: dict[str, Any] = {
        'device': 'H100',
        'capability': (9, 0),
        'amp': None,
        'flags': {},
    }
    return Profile(**vars(steps), **facts, iterations=1, step_s=0.001, folder='w')


def test_kernels_belong_where_they_were_launched():
    profile = profile_of()
    assert {name: round(1e6 * s) for name, s in profile.parts.items()} == {
        'preprocessor': 10,
        'copies': 50,
        'forward': 350,
        'backward': 200,
        'optimizer': 80,
        'other': 20,
        'idle': 290,
    }
    assert profile.modules == pytest.approx(
        {'neck': 550e-6, 'data_preprocessor': 10e-6}
    )
    assert profile.kernels == 8
    assert profile.products_pct == pytest.approx(100 * 490 / 710)


@pytest.mark.parametrize(
    ('plain_us', 'bound', 'words'),
    [
        (1000, 'launches', 'Launch-bound'),
        (900, 'kernels', 'Kernel-bound'),
        (600, 'kernels', 'Kernel-bound'),
    ],
)
def test_a_step_is_launch_bound_when_the_card_is_idle_for_a_quarter(
    plain_us: float, bound: str, words: str
):
    # the profiler slows launches, so a step without it is judged
    profile = profile_of(plain_us)
    assert profile.bound == bound
    text = render(describe_profile(profile))
    assert text.startswith(words)
    assert 'it has 8 kernels of 89 us' in ' '.join(text.split())


def test_time_without_a_kernel_is_said():
    # 710 us of kernels
    profile = profile_of(1000)
    assert profile.uncovered_s == pytest.approx(290e-6)
    text = ' '.join(render(describe_profile(profile)).split())
    assert 'No kernel ran for 290 us of it (29 %).' in text
    assert profile_of(on_card=False).uncovered_s is None


def test_fills_of_new_tensors_and_losses_are_counted():
    events = make_step()
    step = events[1]
    empty = event('aten::empty_like', step)
    loss = event(f'{MODULE}bbox_head.loss_cls', step)
    events += [
        empty,
        event('aten::fill_', empty, ('fill', 10.0)),
        # one that the model itself asks for
        event('aten::fill_', step, ('fill', 10.0)),
        loss,
        event('aten::binary_cross_entropy', loss, ('bce', 270.0)),
    ]
    steps = summarize_steps(events, 1, 0.002, on_card=True)
    assert steps.fills == 1
    assert steps.losses_pct == pytest.approx(27)
    profile = replace(profile_of(), fills=2443.0, refused={'ema': 'no EMAHook'})
    text = ' '.join(render(describe_profile(profile)).split())
    assert 'It fills 2443 new tensors in a step for determinism (MG607).' in text
    assert 'optimize=ema: no EMAHook.' in text


def test_the_hosts_parts_stand_beside_those_with_optimize():
    parts = {'optimizer step': HostPart(0.0374, 0.0102), 'clipping': HostPart(0.003)}
    text = render(describe_profile(replace(profile_of(), host_parts=parts)))
    words = ' '.join(text.split())
    assert 'on the host plain optimize optimizer step 37.4 ms 10.2 ms' in words
    assert 'clipping 3.0 ms' in words
    assert 'on the host' not in render(describe_profile(profile_of()))


def test_parts_of_an_iteration_are_added_up_once(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr(trial_profile, 'thread_cpu_s', lambda: float(next(now)))
    clock = HostClock()

    class Wrapper:
        def clip(self) -> None:
            """Advances the fake clock by one second."""

        def step(self) -> str:
            self.clip()
            return 'stepped'

    wrapper = Wrapper()
    clock.time(wrapper, 'clip', 'clipping', 'step')
    clock.time(wrapper, 'step', 'step', 'main')
    clock.time(wrapper, 'missing', 'nothing')
    for way in ('plain', 'plain', 'warm-up', 'optimized'):
        with clock.timing('main'):
            assert wrapper.step() == 'stepped'
        clock.end_iteration(way)
    parts = clock.summarize(is_optimized=True)
    # the clock goes on by a second each time it is read: 5, 3 and 1 of them
    assert {name: part.plain_s for name, part in parts.items()} == {
        'main': 2.0,
        'step': 2.0,
        'clipping': 1.0,
    }
    assert parts['step'].optimized_s == 2.0
    assert clock.summarize(is_optimized=False)['step'].optimized_s is None


def test_without_kernels_the_reason_is_said():
    steps = summarize_steps(make_step(on_card=False), 1, 0.001, on_card=True)
    assert (steps.bound, steps.kernels) == (None, None)
    assert 'CUPTI' in (steps.bound_reason or '')


def test_on_a_cpu_operators_stand_for_kernels():
    profile = profile_of(on_card=False)
    assert profile.parts['forward'] == pytest.approx(70e-6)
    assert profile.parts['backward'] == pytest.approx(30e-6)
    assert sum(profile.parts.values()) == pytest.approx(0.001)
    assert 'unknown' in render(describe_profile(profile))


AMP = {'amp': 'float16', 'bound': 'kernels', 'products_pct': 80.0}


@pytest.mark.parametrize(
    ('facts', 'said'),
    [
        (AMP, 'AMP is on (float16). Convolutions and matrix products take 80 %'),
        ({**AMP, 'capability': (6, 1)}, 'brings little: this card has no tensor cores'),
        ({**AMP, 'bound': 'launches'}, 'brings little: the card waits for launches'),
        ({**AMP, 'products_pct': 8.0}, 'brings little: little of the busy time'),
        ({**AMP, 'losses_pct': 40.0}, '40 % of the busy time is in the losses, which'),
        (
            {**AMP, 'amp': None, 'flags': {'cudnn_allow_tf32': True}},
            'AMP is off, and would bring little: convolutions compute in TF32 already',
        ),
        (
            {'amp': None, 'bound': 'launches'},
            'AMP is off, and would bring little: the card waits',
        ),
        ({**AMP, 'amp': None}, 'AMP is off. Convolutions'),
        ({'capability': None, 'products_pct': None}, 'AMP is off.'),
    ],
)
def test_amp_is_named_with_the_reason_for_a_small_gain(
    facts: dict[str, Any], said: str
):
    text = render(describe_profile(replace(profile_of(), **facts)))
    assert said in ' '.join(text.split())


def test_parts_that_are_not_the_step_are_said_to_be():
    profile = profile_of()
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
        (DETECTOR, 'bbox_head neck backbone.stage1 backbone.stage2 backbone.stage3'),
        # the losses of a head are not in what it contains
        (
            {'head': 60, 'head.conv': 20, 'net.a': 9, 'net.b': 8, 'neck': 3},
            'head net.a net.b neck',
        ),
        # one that takes nearly all is divided, though there are five others
        (
            {**{f'm{n}': 1 for n in range(5)}, 'net.a': 40, 'net.b': 50},
            'net.b net.a m0 m1 m2',
        ),
        ({'module.net.only': 1}, 'module.net.only'),
        ({}, ''),
    ],
)
def test_no_module_of_the_five_contains_another(spent: dict[str, int], names: str):
    assert [*list_modules(spent)] == names.split(' ')
