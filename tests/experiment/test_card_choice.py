from __future__ import annotations

import pytest

from fakes.replaced import replace
from mmgpu_hooks.experiment.card_choice import CardRequest, judge_cards, rank_cards
from mmgpu_hooks.experiment.visible_cards import CardNameError
from mmgpu_hooks.schema import CardState


def card(index: int, free: int = 900, util: float | None = 0.0, **facts) -> CardState:
    uuid = f'GPU-{index}{index}ab'
    known = CardState(index, None, uuid, uuid, 'Fake 100', 1000, free, util)
    return replace(known, **facts)


def slice_of(whole: CardState, number: int, free: int = 100) -> CardState:
    return replace(
        whole,
        slice_index=number,
        uuid=f'MIG-{whole.index}{number}',
        memory_free_bytes=free,
        memory_total_bytes=100,
        util_pct=None,
        is_sliced=False,
    )


def judged(cards, environ=None, **request) -> dict[str, str | None]:
    told = judge_cards(cards, CardRequest(**request), environ or {})
    return {card.label: card.reason for card in told}


@pytest.mark.parametrize(
    ('cards', 'order'),
    [
        ([card(0, 100), card(1, 900), card(2, 500)], '120'),
        # a card with much more memory is better, however busy
        ([card(0, 500, 0.0), card(1, 900, 100.0)], '10'),
        # 2 % of the most count as nothing: then the idle one
        ([card(0, 900, 40.0), card(1, 883, 10.0)], '10'),
        ([card(0, 900, 40.0), card(1, 881, 10.0)], '01'),
        # nothing is known of how busy: last of its like
        ([card(0, 900, None), card(1, 900, 100.0)], '10'),
        # equals: the driver's order, and a byte decides between idle ones
        ([card(0), card(1)], '01'),
        ([card(0, 899), card(1, 900)], '10'),
        ([card(0, 0), card(1, 0, 5.0)], '01'),
        ([card(0, reason='lost'), card(1, 10)], '1'),
        ([], ''),
    ],
)
def test_free_memory_first_then_idle(cards, order):
    assert ''.join(card.label for card in rank_cards(cards)) == order


def test_what_is_asked_for_narrows_the_choice():
    cards = [card(0, 100), card(1, 500), card(2, 900), card(3, reason='cannot be read')]
    full = 'too little memory is free'
    lost = 'cannot be read'
    assert judged(cards, min_free_bytes=500) == {
        '0': full,
        '1': None,
        '2': None,
        '3': lost,
    }
    assert judged(cards, min_free_pct=50.1) == {
        '0': full,
        '1': full,
        '2': None,
        '3': lost,
    }
    assert judged(cards, exclude=('1', 'gpu-22')) == {
        '0': None,
        '1': 'excluded',
        '2': 'excluded',
        '3': lost,
    }


@pytest.mark.parametrize('name', ['7', 'GPU-', 'GPU-99', 'Fake', '0:0', '-1'])
def test_an_exclusion_that_names_no_single_card_is_refused(name):
    with pytest.raises(CardNameError, match='to exclude, found '):
        judged([card(0), card(1)], exclude=(name,))


@pytest.mark.parametrize(
    ('visible', 'labels'),
    [
        ('0', '0'),
        ('2,0', '02'),
        ('GPU-11', '1'),
        ('gpu-22ab', '2'),
        ('', ''),
        ('-1', ''),
        ('0,-1,2', '0'),  # CUDA's list ends at what names nothing
        ('0,7,2', '0'),
        ('NoDevFiles', ''),
        (' 1 , 2 ', '12'),
    ],
)
def test_visible_devices_are_read_as_cuda_does(visible, labels):
    told = judged([card(0), card(1), card(2)], {'CUDA_VISIBLE_DEVICES': visible})
    assert ''.join(label for label, reason in told.items() if reason is None) == labels
    hidden = {reason for reason in told.values() if reason is not None}
    assert hidden <= {'not in CUDA_VISIBLE_DEVICES'}


def test_an_index_is_no_name_where_cuda_counts_in_another_order():
    cards = [card(0, name='Small'), card(1, name='Big')]
    environ = {'CUDA_VISIBLE_DEVICES': '0'}
    with pytest.raises(CardNameError, match=r"CUDA's own order.*PCI_BUS_ID"):
        judged(cards, environ)
    assert judged(cards, {**environ, 'CUDA_DEVICE_ORDER': 'PCI_BUS_ID'})['0'] is None
    # one card has one index, whatever the order
    assert judged(cards[1:], environ) == {'1': None}


def test_an_index_counts_the_cards_that_may_be_opened():
    shut = CardState(0, reason='cannot be read: Insufficient Permissions')
    told = judged([shut, card(1), card(2)], {'CUDA_VISIBLE_DEVICES': '0'})
    assert told['1'] is None
    assert told['2'] == 'not in CUDA_VISIBLE_DEVICES'


class TestSlices:
    whole = card(0, 100, None, is_sliced=True)
    cards = (whole, slice_of(whole, 0), slice_of(whole, 1), card(1))

    def test_a_sliced_card_is_used_by_slices_alone(self):
        told = judged(self.cards)
        assert told == {
            '0': 'sliced (MIG): only its slices can be used',
            '0:0': None,
            '0:1': None,
            '1': None,
        }

    def test_a_process_has_one_slice_at_most(self):
        told = judged(self.cards, count=2)
        assert told['0:0'] == told['0:1'] == 'a process can use one MIG slice only'
        assert told['1'] is None

    @pytest.mark.parametrize(
        ('visible', 'free'), [('MIG-01', ['0:1']), ('GPU-00ab', ['0:0', '0:1'])]
    )
    def test_visible_by_its_own_name_or_its_cards(self, visible, free):
        told = judged(self.cards, {'CUDA_VISIBLE_DEVICES': visible})
        assert [label for label, reason in told.items() if reason is None] == free

    def test_an_index_is_no_name_beside_slices(self):
        with pytest.raises(CardNameError, match='some are sliced'):
            judged(self.cards, {'CUDA_VISIBLE_DEVICES': '0'})

    def test_an_excluded_card_takes_its_slices_along(self):
        assert judged(self.cards, exclude=('0',))['0:1'] == 'excluded'
        told = judged(self.cards, exclude=('0:1',))
        assert (told['0:0'], told['0:1']) == (None, 'excluded')
