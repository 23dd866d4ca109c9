from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from fakes.nvml import FakeGpu, FakeNvml
from fakes.replaced import replace
from mmgpu_hooks.experiment.cards import (
    Card,
    CardLocks,
    judge_cards,
    read_cards,
)
from mmgpu_hooks.schema.errors import UserError


def card(index: int, free: int = 900, util: float | None = 0.0, **facts) -> Card:
    known = Card(index, f'GPU-{index}{index}ab', 'Fake 100', 1000, free, util)
    return replace(known, **facts)


def order(cards, environ=None, **request) -> str:
    judged = judge_cards(cards, environ or {}, **request)
    return ''.join(str(one.index) for one in judged if one.reason is None)


THREE = [card(0, 100), card(1, 500), card(2, 900)]


@pytest.mark.parametrize(
    ('cards', 'request_', 'expected'),
    [
        (THREE, {}, '210'),
        # a card with much more memory is better, however busy
        ([card(0, 500, 0.0), card(1, 900, 100.0)], {}, '10'),
        # 2 % of the most count as nothing: then the idle one
        ([card(0, 900, 40.0), card(1, 883, 10.0)], {}, '10'),
        ([card(0, 900, 40.0), card(1, 881, 10.0)], {}, '01'),
        # nothing is known of how busy: last among equals
        ([card(0, 900, None), card(1, 900, 100.0)], {}, '10'),
        ([card(0), card(1)], {}, '01'),
        ([card(0, reason='lost'), card(1, 10)], {}, '1'),
        ([], {}, ''),
        (THREE, {'min_free_bytes': 500}, '21'),
        (THREE, {'min_free_pct': 50.1}, '2'),
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
        (' 1 , 2 ', '21'),
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


@pytest.mark.parametrize(
    ('gpu', 'reason'),
    [
        (FakeGpu(fail={'memory': (15, 0)}), 'cannot be read: GPU is lost'),
        (FakeGpu(fail={'uuid': (4, 0)}), 'cannot be read: Insufficient Permissions'),
        (FakeGpu(memory=None), 'cannot be read: Not Supported'),
        (FakeGpu(memory=(100, 200)), 'cannot be read: 200 of 100 bytes in use'),
        (FakeGpu(more=['computemode 2']), 'its compute mode is Prohibited'),
        (
            FakeGpu(more=['computemode 3', 'running', 'compute 4711 300']),
            'a process has it alone (Exclusive_Process)',
        ),
        (FakeGpu(more=['computemode 3', 'running']), None),
        (FakeGpu(util=()), None),
    ],
)
def test_what_keeps_a_process_off_a_card(fake_nvml: FakeNvml, gpu, reason):
    fake_nvml.set(gpu)
    assert [one.reason for one in read_cards()] == [reason]


def test_a_card_in_slices_is_not_picked(fake_nvml: FakeNvml):
    fake_nvml.set(FakeGpu(uuid='GPU-1', mig=1), FakeGpu(uuid='MIG-a'))
    assert '(MIG)' in str(read_cards()[0].reason)


def test_one_process_has_a_card_until_it_gives_it_back(tmp_path: Path):
    folder = tmp_path / 'locks'
    first, second = CardLocks(folder), CardLocks(folder)
    assert first.pick(THREE, 2)[0] == THREE[:2]
    picked, judged = second.pick(THREE, 2)
    assert picked == []
    in_use = f'in use by process {os.getpid()}'
    assert [one.reason for one in judged] == [in_use, in_use, None]
    first.release()
    assert second.pick(THREE, 2)[0] == THREE[:2]
    second.release()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_reservation_ends_by_the_clock(tmp_path: Path, monkeypatch):
    locks = CardLocks(tmp_path)
    locks.pick(THREE, 1)
    locks.reserve(60)
    locks.release()
    assert locks.pick(THREE, 1)[0] == THREE[1:2]
    locks.release()
    now = 'mmgpu_hooks.experiment.cards.time.monotonic'
    later = time.monotonic() + 61
    monkeypatch.setattr(now, lambda: later)
    assert locks.pick(THREE, 1)[0] == THREE[:1]
    locks.release()


@pytest.mark.parametrize('text', ['', '{', '7', 'x y', '1 nan', '1 1e99', '\xff\xfe'])
def test_what_a_lock_file_holds_keeps_nobody_off(tmp_path: Path, text):
    (tmp_path / f'{THREE[0].uuid}.lock').write_bytes(text.encode('latin-1'))
    locks = CardLocks(tmp_path)
    assert locks.pick(THREE, 1)[0] == THREE[:1]
    locks.release()


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch):
    (tmp_path / f'locks-{os.getuid() + 1}').mkdir()
    monkeypatch.setattr('mmgpu_hooks.experiment.cards.LOCKS', tmp_path / 'locks')
    uid = os.getuid()
    monkeypatch.setattr('mmgpu_hooks.experiment.cards.os.getuid', lambda: uid + 1)
    with pytest.raises(UserError, match=f'found that of user {uid}; name another'):
        CardLocks()
