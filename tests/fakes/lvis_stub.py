"""Stub of the package ``lvis`` with the methods that MMDetection calls.

It is ours, and reads the file as the real one (0.5.3) does: with Python's ``open``,
into indexes that are kept as plain data.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import defaultdict
from types import ModuleType
from typing import Any


class LVIS:
    """Stub of ``lvis.LVIS``: annotations by image and by category."""

    def __init__(self, annotation_path: str) -> None:
        with open(annotation_path) as file:
            found = json.load(file)
        self._images = {image['id']: image for image in found['images']}
        self._notes = {note['id']: note for note in found['annotations']}
        self._categories = [category['id'] for category in found['categories']]
        self._of_image = defaultdict[Any, list[Any]](list)
        self.cat_img_map = defaultdict[Any, list[Any]](list)
        for note in found['annotations']:
            self._of_image[note['image_id']].append(note['id'])
            self.cat_img_map[note['category_id']].append(note['image_id'])

    def get_cat_ids(self) -> list[int]:
        return list(self._categories)

    def get_img_ids(self) -> list[int]:
        return list(self._images)

    def load_imgs(self, ids: list[int]) -> list[Any]:
        return [self._images[number] for number in ids]

    def get_ann_ids(self, img_ids: list[int]) -> list[int]:
        return [number for image in img_ids for number in self._of_image[image]]

    def load_anns(self, ids: list[int]) -> list[Any]:
        return [self._notes[number] for number in ids]


def provide_lvis(monkeypatch: Any) -> None:
    """Makes ``import lvis`` possible, with the stub if the package is missing."""
    if importlib.util.find_spec('lvis') is None:
        module = ModuleType('lvis')
        module.LVIS = LVIS  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, 'lvis', module)
