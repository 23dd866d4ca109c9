"""Makes torch use the mock driver's GPUs; configs import this module first.

FakeGPU stands for ``torch.cuda``: the arithmetic runs on the CPU, the allocator is
modelled. Added here is what it lacks: names of the cards that the driver knows too,
``CUDA_VISIBLE_DEVICES``, events that measure time, nested allocator statistics.

Environment:
    MMGPU_MOCK_CARD: Folder with ``driver/`` and ``fakegpu_src/``.
    MOCK_NVML_CONFIG: The driver's cards. ``OWN_PID`` in it becomes the number of this
        process.
    MOCK_CARD_PROFILE: The same cards for FakeGPU.
    MOCK_CARD_NAMED_BY: What is known of a card: ``uuid``, ``pci`` or ``nothing``.
    MOCK_CARD_MIB: Its memory; default: the profile's.
    MOCK_CARD_LACKS: Set where nothing is added to what FakeGPU says of memory: no name
        of the allocator, no nested statistics.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import yaml
from mmengine.device import utils as mmengine_device

from mmgpu_hooks.measure import cuda

NAMED_BY = os.environ.get('MOCK_CARD_NAMED_BY', 'uuid')


class Event:
    """Fake CUDA event that is complete as soon as it is recorded."""

    def __init__(self, **_: Any) -> None:
        self._at_s = 0.0

    def record(self, stream: Any = None) -> None:
        self._at_s = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Event) -> float:
        return (other._at_s - self._at_s) * 1e3


def visible_cards(path: Path) -> list[dict[str, Any]]:
    """Returns the mock driver's GPUs that CUDA would show, in CUDA's order."""
    cards: list[dict[str, Any]] = yaml.safe_load(path.read_text())['devices']
    chosen = os.environ.get('CUDA_VISIBLE_DEVICES')
    if chosen is None:
        return cards
    return [
        card
        for name in chosen.split(',')
        for index, card in enumerate(cards)
        if name == str(index) or (name[:4] == 'GPU-' and card['uuid'].startswith(name))
    ]


def plug_in() -> None:
    """Makes torch use the mock GPUs, once per process and before any GPU use."""
    driver_config = Path(os.environ['MOCK_NVML_CONFIG'])
    text = driver_config.read_text()
    driver_config.write_text(text.replace('OWN_PID', str(os.getpid())))
    cards = visible_cards(driver_config)
    profile = os.environ['MOCK_CARD_PROFILE']
    sys.path.append(str(Path(os.environ['MMGPU_MOCK_CARD']) / 'fakegpu_src'))
    names = ('fakegpu', 'fakegpu.torch_patch', 'fakegpu._upstream')
    modules: Iterable[Any] = map(importlib.import_module, names)
    fakegpu, torch_patch, upstream = modules
    if 'MOCK_CARD_MIB' in os.environ:
        mib = int(os.environ['MOCK_CARD_MIB'])
        torch_patch._PROFILE_TOTAL_MEMORY[profile] = mib * 2**20
    fakegpu.init(runtime='fakecuda', profile=profile, device_count=len(cards))

    map_tree = upstream._tree_map

    def map_named(function: Any, tree: Any) -> Any:
        # keep the `.values` and `.indices` of what max, min, topk and sort return
        if type(tree).__module__ == 'torch.return_types':
            return type(tree)([map_named(function, item) for item in tree])
        return map_tree(function, tree)

    upstream._tree_map = map_named

    to_cuda = upstream._module_cuda_impl

    def to_cuda_alive(module: Any, *arguments: Any) -> Any:
        # it remembers tensors by id(), which must not be given to others meanwhile
        alive = [*module.parameters(), *module.buffers()]
        moved = to_cuda(module, *arguments)
        del alive
        return moved

    upstream._module_cuda_impl = to_cuda_alive

    get_properties, get_stats = (
        torch.cuda.get_device_properties,
        torch.cuda.memory_stats,
    )

    def get_named(device: Any = None) -> Any:
        properties = get_properties(device)
        if NAMED_BY == 'uuid':
            index = torch.cuda._utils._get_device_index(device, True)
            properties.uuid = cards[index]['uuid'].removeprefix('GPU-')
        return properties

    torch.cuda.get_device_properties = get_named
    if NAMED_BY == 'pci':  # there is no CUDA driver that could be asked for it
        cuda.read_pci_bus_id = lambda index: cards[index]['pci']['bus_id']
    if 'MOCK_CARD_LACKS' not in os.environ:
        torch._C._cuda_getAllocatorBackend = lambda: 'native'
        torch.cuda.memory_stats_as_nested_dict = lambda device=None: (
            cuda.nest_statistics(get_stats(device))
        )
    torch.cuda.Event = Event
    # MMEngine asks for it when it is imported, which tests do once for all trainings
    mmengine_device.DEVICE = 'cuda'


plug_in()
