from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from fakes.nvml import FakeGpu, FakeNvml
from fakes.replaced import replace
from mmgpu_hooks.experiment import card_locks
from mmgpu_hooks.experiment.cards import Card, judge_cards, read_cards
from mmgpu_hooks.schema.errors import UserError


def card(index: int, free: int = 900, util: float | None = 0.0, **facts) -> Card:
    known = Card(index, f'GPU-{index}{index}ab', 'Fake 100', 1000, free, util)
    return replace(known, **facts)


def order(cards, environ=None, **request) -> str:
    judged = judge_cards(cards, environ or {}, **request)
    return ''.join(str(card.index) for card in judged if card.reason is None)


THREE = [card(0, 100), card(1, 500), card(2, 900)]


@pytest.mark.parametrize(
    ('cards', 'request_', 'expected'),
    [
        (THREE, {}, '210'),
        ([card(0, 99), *THREE[1:]], {}, '21'),
        # a card with much more memory is better, however busy
        ([card(0, 500, 0.0), card(1, 900, 100.0)], {}, '10'),
        # 2 % of the most count as nothing: then the idle one
        ([card(0, 900, 40.0), card(1, 883, 10.0)], {}, '10'),
        ([card(0, 900, 40.0), card(1, 881, 10.0)], {}, '01'),
        # nothing is known of how busy: last among equals
        ([card(0, 900, None), card(1, 900, 100.0)], {}, '10'),
        ([card(0), card(1)], {}, '01'),
        ([card(0, reason='lost'), card(1, 100)], {}, '1'),
        ([], {}, ''),
        (THREE, {'least_bytes': 500}, '21'),
    ],
    ids=[
        'free',
        'one too full',
        'more free though busy',
        '2 % less and idle',
        '3 % less and idle',
        'unknown use',
        'alike',
        'one lost',
        'no card',
        'least free',
    ],
)
def test_the_best_that_is_allowed_comes_first(cards, request_, expected):
    assert order(cards, **request_) == expected


@pytest.mark.parametrize(
    ('visible', 'expected'),
    [
        ('0', '0'),
        ('2,0', '20'),
        ('GPU-11', '1'),
        ('gpu-22ab', '2'),
        ('', ''),
        ('-1', ''),
        ('0,-1,2', '0'),  # CUDA's list ends at what names nothing
        ('0,7,2', '0'),
        ('NoDevFiles', ''),
        # as PyTorch reads them, too: twice is none, and a number ends at a letter
        ('0,0', ''),
        ('1,2,1', ''),
        ('0,GPU-00', ''),
        ('0,7,0', '0'),
        ('1gpu2,+2', '21'),
        (' 1 , 2 ', '21'),
        ('02', '2'),
        # CUDA reads ASCII digits alone
        ('²', ''),
        ('1,٢', '1'),
        ('1,\u00a02', '1'),
        ('9' * 5000, ''),
    ],
)
def test_visible_devices_are_read_as_cuda_does(visible, expected):
    assert order(THREE, {'CUDA_VISIBLE_DEVICES': visible}) == expected
    # CUDA counts only the cards that the process may open
    shut = Card(0, reason='cannot be read: Insufficient Permissions')
    assert order([shut, *THREE[1:]], {'CUDA_VISIBLE_DEVICES': '0'}) == '1'


def test_an_index_is_no_name_where_cuda_counts_in_another_order():
    cards = [card(0, name='Small'), card(1, name='Big')]
    environ = {'CUDA_VISIBLE_DEVICES': '0'}
    with pytest.raises(UserError, match=r"CUDA's own order.*PCI_BUS_ID"):
        order(cards, environ)
    assert order(cards, {**environ, 'CUDA_DEVICE_ORDER': 'PCI_BUS_ID'}) == '0'
    # what names no card is none in any order
    assert order(cards, {'CUDA_VISIBLE_DEVICES': '9'}) == ''


@pytest.mark.parametrize(
    ('gpu', 'reason'),
    [
        (FakeGpu(fail={'memory': (15, 0)}), 'cannot be read: .*GPU is lost'),
        (FakeGpu(fail={'uuid': (4, 0)}), 'cannot be read: .*Insufficient Perm'),
        (FakeGpu(memory=None), 'cannot be read: .*Not Supported'),
        (FakeGpu(memory=(100, 200)), 'cannot be read: .*200 of 100 bytes in use'),
        (FakeGpu(mig=1), r'is cut into slices \(MIG\): name one yourself'),
        (FakeGpu(util=()), None),
    ],
)
def test_an_unreadable_or_sliced_card_has_the_reason(fake_nvml: FakeNvml, gpu, reason):
    fake_nvml.set(FakeGpu(uuid='GPU-1', memory=(1000, 300)), gpu)
    first, second = read_cards()
    assert first == Card(0, 'GPU-1', 'NVIDIA Fake 100', 1000, 700, 50.0)
    if reason is None:
        assert second.reason is None
    else:
        assert re.match(reason, str(second.reason))


def test_the_wait_for_tables_begins_anew_at_each_card(tmp_path, monkeypatch):
    monkeypatch.delenv('XDG_RUNTIME_DIR', raising=False)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    monkeypatch.setattr(card_locks, 'TEMPORARY', str(tmp_path / 'locks'))
    folder = Path(f'{tmp_path}/locks-{os.getuid()}')
    folder.mkdir(mode=0o700)
    in_use, shown = card(0), card(1)
    first, second = (folder / f'{each.uuid}.lock' for each in (in_use, shown))
    now_s = 0.0
    with first.open('w') as training, second.open('w') as table:
        fcntl.flock(training, fcntl.LOCK_EX)
        fcntl.flock(table, fcntl.LOCK_SH)

        def sleep(seconds: float) -> None:
            nonlocal now_s
            now_s += seconds
            # when all of the wait at the first card is over
            if now_s > 1.5 * card_locks._READING_S:
                fcntl.flock(table, fcntl.LOCK_UN)

        time = SimpleNamespace(monotonic=lambda: now_s, sleep=sleep)
        monkeypatch.setattr(card_locks, 'time', time)
        _, picked = card_locks.lock_cards([in_use, shown], 1, pytest.fail)
    assert [*picked] == [shown]
    card_locks.close_all(picked[shown])
