"""Tests that data sets from cached annotations equal freshly parsed ones."""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mmdet.datasets import (
    CocoDataset,
    LVISV05Dataset,
    LVISV1Dataset,
    Objects365V1Dataset,
    VOCDataset,
)
from mmengine.dataset import BaseDataset, ConcatDataset, RepeatDataset

from fakes.lvis_stub import provide_lvis
from mmgpu_hooks.measure.dataset_start import DatasetWatch, Initialisation
from mmgpu_hooks.optimize import annotations as kept
from mmgpu_hooks.optimize.annotations import AnnotationCache
from mmgpu_hooks.optimize.refusal import RefusalError

NAMES = ('person', 'bicycle', 'car')
FILTER = {'filter_empty_gt': True, 'min_size': 32}


class Logger:
    """Fake logger that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, line: str) -> None:
        self.lines.append(line)


class Start:
    """Start of a training, in which data sets are initialised with the cache.

    Args:
        folder: Of the cache; ``None`` is a start without one.
    """

    def __init__(self, folder: Path | None) -> None:
        self.found: list[Initialisation] = []
        self.logger = Logger()
        self.watch = DatasetWatch(
            lambda function, *args: function(*args), on_end=self.found.append
        )
        self.folder = folder

    def __enter__(self) -> Start:
        self.watch.open(BaseDataset)
        self.cache = None
        if self.folder is not None:
            environ = {'MMGPU_CACHE': str(self.folder)}
            self.cache = AnnotationCache(self.watch, self.logger, environ)
        return self

    def __exit__(self, *_: Any) -> None:
        self.watch.close()
        if self.cache is not None:
            self.cache.close()

    @property
    def cached(self) -> list[bool]:
        return [found.is_cached for found in self.found]


def write_coco(path: Path, images: int = 40, seed: int = 0) -> Path:
    """Writes COCO annotations: empty and small images, crowds, polygons, odd boxes."""
    chosen = random.Random(seed)
    categories = [{'id': 3 * n + 1, 'name': name} for n, name in enumerate(NAMES)]
    listed, found = list[Any](), list[Any]()
    for number in range(images):
        size = {'width': chosen.choice([20, 200]), 'height': chosen.choice([150, 300])}
        listed.append({'id': 7 * number, 'file_name': f'{number}.jpg', **size})
        for _ in range(chosen.choice([0, 1, 5])):
            box = [chosen.uniform(0, 90), 10.0, chosen.uniform(0, 60), 30.5]
            annotation = {
                'id': len(found) + 1,
                'image_id': 7 * number,
                'category_id': chosen.choice(categories)['id'],
                'bbox': box,
                'area': box[2] * box[3],
                'iscrowd': chosen.choice([0, 0, 1]),
                'segmentation': [[1.0, 2.0, 30.0, 4.0, chosen.random(), 6.0]],
            }
            found.append(annotation)
    text = {'images': listed, 'annotations': found, 'categories': categories}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(text))
    return path


def write_voc(root: Path, images: int = 12) -> Path:
    """Writes VOC annotations: one file per image, and a list of them."""
    for name in ('Annotations', 'JPEGImages'):
        (root / name).mkdir(parents=True, exist_ok=True)
    names = [f'{number:03d}' for number in range(images)]
    for number, name in enumerate(names):
        boxes = ''.join(
            f'<object><name>{NAMES[box % 3]}</name><bndbox><xmin>{box + 1}</xmin>'
            f'<ymin>2</ymin><xmax>{number + 40}</xmax><ymax>50</ymax></bndbox></object>'
            for box in range(number % 4)
        )
        size = '<size><width>100</width><height>80</height></size>'
        text = f'<annotation>{size}{boxes}</annotation>'
        (root / 'Annotations' / f'{name}.xml').write_text(text)
    (root / 'train.txt').write_text('\n'.join(names))
    return root


def write_lvis(path: Path, images: int = 30) -> Path:
    """Writes annotations in LVIS's format."""
    chosen = random.Random(2)
    found = json.loads(write_coco(path, images, 2).read_text())
    found['categories'] = [{'id': n + 1, 'name': f'{n}'} for n in range(1203)]
    for image in found['images']:
        name = f'{image["id"]:012d}.jpg'
        image['file_name'] = f'COCO_train2014_{name}'
        image['coco_url'] = f'http://images.cocodataset.org/train2017/{name}'
        image['neg_category_ids'] = [chosen.randrange(1203) + 1]
    for annotation in found['annotations']:
        annotation['category_id'] = chosen.randrange(1203) + 1
    path.write_text(json.dumps(found))
    return path


@pytest.fixture(scope='module')
def data(tmp_path_factory) -> Path:
    """Folder of annotation files that tests do not change."""
    folder = tmp_path_factory.mktemp('data')
    write_coco(folder / 'coco' / 'train.json')
    write_coco(folder / 'coco' / 'val.json', 15, 1)
    write_voc(folder / 'voc')
    write_lvis(folder / 'lvis' / 'train.json')
    time.sleep(2 * kept._GRAIN_S)
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    """Path of the annotation cache, which does not exist yet."""
    return tmp_path / 'cache' / 'annotations'


def build_coco(data: Path, kind: Any = CocoDataset, **more: Any) -> Any:
    given = {'ann_file': 'train.json', 'filter_cfg': dict(FILTER), **more}
    return kind(
        data_root=str(data / 'coco'),
        data_prefix={'img': 'images/'},
        metainfo={'classes': NAMES},
        pipeline=[],
        **given,
    )


def build_voc(data: Path, **more: Any) -> Any:
    return VOCDataset(
        ann_file=str(data / 'voc' / 'train.txt'),
        data_prefix={'sub_data_root': str(data / 'voc')},
        metainfo={'classes': NAMES},
        filter_cfg=dict(FILTER),
        pipeline=[],
        **more,
    )


def build_lvis(data: Path, kind: Any = LVISV1Dataset) -> Any:
    return kind(
        data_root=str(data / 'lvis'),
        ann_file='train.json',
        data_prefix={'img': ''},
        filter_cfg=dict(FILTER),
        pipeline=[],
    )


def build_concat(data: Path) -> Any:
    return ConcatDataset(
        [build_coco(data), build_coco(data, ann_file='val.json', lazy_init=True)]
    )


BUILT: dict[str, Callable[[Path], Any]] = {
    'CocoDataset': build_coco,
    'unfiltered': lambda data: build_coco(data, filter_cfg=None),
    'test mode': lambda data: build_coco(data, test_mode=True),
    'a few samples': lambda data: build_coco(data, indices=5),
    'chosen samples': lambda data: build_coco(data, indices=[3, 1, 2]),
    'with classes': lambda data: build_coco(data, return_classes=True),
    'Objects365': lambda data: build_coco(data, Objects365V1Dataset),
    'LVIS v1': build_lvis,
    'LVIS v0.5': lambda data: build_lvis(data, LVISV05Dataset),
    'VOCDataset': build_voc,
    'Concat': build_concat,
    'Repeat': lambda data: RepeatDataset(build_coco(data), times=3),
}


def list_inner(dataset: Any) -> Iterator[Any]:
    """Yields MMEngine's data sets inside wrapper data sets."""
    if isinstance(dataset, ConcatDataset):
        for inner in dataset.datasets:
            yield from list_inner(inner)
    elif isinstance(dataset, RepeatDataset):
        yield from list_inner(dataset.dataset)
    else:
        yield dataset


def assert_same(ours: Any, plain: Any) -> None:
    """Asserts that two data sets are equal in samples, categories and stored bytes."""
    assert len(ours) == len(plain) > 0
    for index in range(len(plain)):
        assert ours.get_data_info(index) == plain.get_data_info(index)
    assert ours.metainfo == plain.metainfo
    for own, other in zip(list_inner(ours), list_inner(plain)):
        assert np.array_equal(own.data_bytes, other.data_bytes)
        assert np.array_equal(own.data_address, other.data_address)
        assert list(own.data_address.dtype.str) == list(other.data_address.dtype.str)
        for index in range(len(other)):
            assert own.get_cat_ids(index) == other.get_cat_ids(index)
        left = {'pipeline', 'data_bytes', 'data_address'}
        assert set(vars(own)) == set(vars(other))
        for name in set(vars(other)) - left:
            assert vars(own)[name] == vars(other)[name]
            assert type(vars(own)[name]) is type(vars(other)[name])


@pytest.mark.parametrize('case', BUILT)
def test_what_is_kept_is_what_is_parsed(data, folder, monkeypatch, case):
    provide_lvis(monkeypatch)
    plain = BUILT[case](data)
    for is_cached in (False, True):
        with Start(folder) as start:
            ours = BUILT[case](data)
            assert_same(ours, plain)
        assert start.cached == [is_cached] * len(list(list_inner(plain)))
        assert not [line for line in start.logger.lines if 'not kept' in line]
    assert not hasattr(BaseDataset.__init__, '__wrapped__')


def test_the_first_start_has_it_mapped_as_well(data, folder):
    with Start(folder) as start:
        dataset = build_coco(data)
    assert type(dataset.data_bytes).__name__ == 'MappedArray'
    assert start.found[0].files == 1
    (line,) = start.logger.lines
    assert line.startswith('GPUEfficiencyHook: ')
    assert line.endswith('train.json (CocoDataset) are kept for the next start.')


def test_a_data_set_whose_annotations_are_kept_opens_no_file(data, folder, monkeypatch):
    """Tests that no annotation file is opened if its content is cached."""
    with Start(folder):
        build_voc(data)

    def read(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError('parsed')

    for name in ('list_from_file', 'get_local_path', 'get'):
        monkeypatch.setattr(f'mmdet.datasets.xml_style.{name}', read)
    with Start(folder) as start:
        assert len(build_voc(data)) > 0
    assert start.cached == [True]


CHANGED_ARGUMENTS: dict[str, dict[str, Any]] = {
    'filter': {'filter_cfg': {'filter_empty_gt': False}},
    'mode': {'test_mode': True},
    'classes in samples': {'return_classes': True},
    'indices': {'indices': 3},
    'suffix': {'seg_map_suffix': '.tif'},
    'file': {'ann_file': 'val.json'},
    'class': {'kind': Objects365V1Dataset},
}


@pytest.mark.parametrize('case', CHANGED_ARGUMENTS)
def test_other_arguments_are_parsed_anew(data, folder, case):
    with Start(folder):
        build_coco(data)
    with Start(folder) as start:
        ours = build_coco(data, **CHANGED_ARGUMENTS[case])
    assert start.cached == [False]
    assert_same(ours, build_coco(data, **CHANGED_ARGUMENTS[case]))


def test_another_version_is_parsed_anew(data, folder, monkeypatch):
    with Start(folder):
        build_coco(data)
    kept._list_versions.cache_clear()
    monkeypatch.setattr('mmdet.__version__', '9.9.9')
    with Start(folder) as start:
        build_coco(data)
    kept._list_versions.cache_clear()
    assert start.cached == [False]


OWN_CODE = {
    'own_data_set': (
        'from mmdet.datasets import CocoDataset\n'
        'from own_helpers import mark\n'
        'class OwnDataset(CocoDataset):\n'
        '    MARK = 1\n'
        '    def parse_data_info(self, raw):\n'
        '        from own_late import late\n'
        '        parsed = super().parse_data_info(raw)\n'
        '        return dict(parsed, mark=mark(), own=self.MARK, late=late())\n'
    ),
    'own_helpers': 'def mark():\n    return 1\n',
    'own_late': 'def late():\n    return 1\n',
}


@pytest.fixture
def own(tmp_path, monkeypatch) -> Iterator[Any]:
    """Data set of a user's project with several modules."""
    for name, text in OWN_CODE.items():
        (tmp_path / f'{name}.py').write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module('own_data_set')
    for name in OWN_CODE:
        sys.modules.pop(name, None)


def change_helper(own: Any, monkeypatch: Any) -> dict[str, int]:
    path = Path(sys.modules['own_helpers'].__file__)
    path.write_text('def mark():\n    return 22\n')
    monkeypatch.setattr(own, 'mark', lambda: 22)
    return {'mark': 22}


def change_late(own: Any, monkeypatch: Any) -> dict[str, int]:
    path = Path(sys.modules.pop('own_late').__file__)
    path.write_text('def late():\n    return 22\n')
    return {'late': 22}


def change_attribute(own: Any, monkeypatch: Any) -> dict[str, int]:
    monkeypatch.setattr(own.OwnDataset, 'MARK', 22)
    return {'own': 22}


def change_installed(own: Any, monkeypatch: Any) -> dict[str, int]:
    parse = CocoDataset.parse_data_info

    def changed(self: Any, raw: Any) -> Any:
        return {**parse(self, raw), 'flag': 22}

    monkeypatch.setattr(CocoDataset, 'parse_data_info', changed)
    return {'flag': 22}


CODE_CHANGES = change_helper, change_late, change_attribute, change_installed


@pytest.mark.parametrize(
    'change', CODE_CHANGES, ids=lambda change: change.__name__.split('_', 1)[1]
)
def test_code_that_its_class_uses_is_in_the_key(data, folder, own, monkeypatch, change):
    for is_cached in (False, True):
        with Start(folder) as start:
            build_coco(data, own.OwnDataset)
        assert start.cached == [is_cached]
    expected = change(own, monkeypatch)
    with Start(folder) as start:
        sample = build_coco(data, own.OwnDataset).get_data_info(0)
    assert start.cached == [False]
    assert {name: sample[name] for name in expected} == expected


def test_code_that_changed_is_parsed_anew(data, folder, tmp_path, monkeypatch):
    module = tmp_path / 'own_data_set.py'
    text = (
        'from mmdet.datasets import CocoDataset\n'
        'class OwnDataset(CocoDataset):\n'
        '    def parse_data_info(self, raw):\n'
        '        return dict(super().parse_data_info(raw), mark=1)\n'
    )
    module.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_data_set  # type: ignore[import-not-found]

    for is_cached in (False, True):
        with Start(folder) as start:
            ours = build_coco(data, own_data_set.OwnDataset)
        assert start.cached == [is_cached]
        assert ours.get_data_info(0)['mark'] == 1
    module.write_text(text.replace('mark=1', 'mark=22'))
    with Start(folder) as start:
        build_coco(data, own_data_set.OwnDataset)
    assert start.cached == [False]


@pytest.mark.parametrize('changed', ['coco', 'voc'])
def test_a_file_that_changed_is_parsed_anew(tmp_path, folder, changed):
    data = tmp_path / 'data'
    write_coco(data / 'coco' / 'train.json')
    write_voc(data / 'voc')
    build = {'coco': build_coco, 'voc': build_voc}[changed]
    time.sleep(2 * kept._GRAIN_S)
    with Start(folder):
        build(data)
    if changed == 'coco':
        write_coco(data / 'coco' / 'train.json', 40, 5)
    else:
        path = data / 'voc' / 'Annotations' / '003.xml'
        info = path.stat()
        path.write_text(path.read_text().replace('<ymin>2', '<ymin>3'))
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    time.sleep(2 * kept._GRAIN_S)
    with Start(folder) as start:
        ours = build(data)
        assert_same(ours, build(data))
    assert start.cached[0] is False
    assert len(list(folder.iterdir())) == 1


def test_a_file_that_just_changed_is_not_kept(tmp_path, folder, monkeypatch):
    write_coco(tmp_path / 'data' / 'coco' / 'train.json')
    # a machine that is slow to come here must not make it old
    monkeypatch.setattr(kept, '_GRAIN_S', 60.0)
    with Start(folder) as start:
        build_coco(tmp_path / 'data')
    (line,) = start.logger.lines
    assert line.endswith('not kept: a file changed a moment ago.')


@pytest.mark.parametrize('case', ['the day before', 'a day ahead'])
def test_a_time_that_was_set_is_kept(tmp_path, folder, case):
    """Tests that a file whose ``mtime`` was set is cached, and its changes noticed."""
    file = write_coco(tmp_path / 'data' / 'coco' / 'train.json')
    set_s = time.time() + (86_400 if 'ahead' in case else -86_400)
    os.utime(file, (set_s, set_s))
    time.sleep(2 * kept._GRAIN_S)
    for is_cached in (False, True):
        with Start(folder) as start:
            build_coco(tmp_path / 'data')
        assert start.cached == [is_cached]
    # and a change is seen even if its time is set to the same again
    text = file.read_text()
    file.write_text(text.replace('0.jpg', '1.jpg', 1))
    os.utime(file, (set_s, set_s))
    with Start(folder) as start:
        build_coco(tmp_path / 'data')
    assert start.cached == [False]


def test_a_file_of_a_host_whose_clock_is_ahead_is_not_kept(
    tmp_path, folder, monkeypatch
):
    file = write_coco(tmp_path / 'data' / 'coco' / 'train.json')
    ahead_ns = file.stat().st_ctime_ns
    monkeypatch.setattr(kept, 'read_age_s', lambda ns: (ahead_ns - ns) / 1e9 - 3600)
    with Start(folder) as start:
        build_coco(tmp_path / 'data')
    (line,) = start.logger.lines
    assert line.endswith(
        f'not kept: {file} was changed 3600 s ahead of the clock of this host, and so '
        'a next change may go unseen: set the clock of this host, or of the one that '
        'has the file.'
    )


class OwnInit(CocoDataset):
    """Data set with its own ``full_init``."""

    def full_init(self) -> None:
        super().full_init()


class OwnInfo(CocoDataset):
    """Data set with its own ``get_data_info``."""

    def get_data_info(self, idx: int) -> Any:
        return super().get_data_info(idx)


class KeepsIndex(CocoDataset):
    """Data set that keeps an additional object when it parses."""

    def load_data_list(self) -> Any:
        self.index = Logger()
        return super().load_data_list()


class Odd(CocoDataset):
    """Data set with an attribute that is not plain data."""

    def __init__(self, **given: Any) -> None:
        self.chooser = len
        super().__init__(**given)


class Listing(CocoDataset):
    """Data set that lists a folder when it parses."""

    def load_data_list(self) -> Any:
        os.listdir(self.data_root)
        return super().load_data_list()


class Threaded(CocoDataset):
    """Data set that reads another file in a thread when it parses."""

    def load_data_list(self) -> Any:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(Path(self.ann_file).read_bytes).result()
        return super().load_data_list()


class Forking(CocoDataset):
    """Data set that runs a program when it parses."""

    def load_data_list(self) -> Any:
        subprocess.run(['true'], check=True)
        return super().load_data_list()


class Counting(CocoDataset):
    """Data set that counts parsed files in a class attribute."""

    parsed = 0

    def load_data_list(self) -> Any:
        Counting.parsed += 1
        return super().load_data_list()


OPENED: list[str] = []


class Noting(CocoDataset):
    """Data set that records parsed files in a module variable."""

    def load_data_list(self) -> Any:
        OPENED.append(self.ann_file)
        return super().load_data_list()


class Hopeful(CocoDataset):
    """Data set that tries to read another, missing file when it parses."""

    def load_data_list(self) -> Any:
        with contextlib.suppress(FileNotFoundError), open('/nowhere/more.json') as more:
            json.load(more)
        return super().load_data_list()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    'Python objects': (
        {'serialize_data': False},
        'its samples are Python objects (serialize_data=False)',
    ),
    'a backend': (
        {'backend_args': {'backend': 'petrel'}},
        'its files are read by another backend (backend_args)',
    ),
    'full_init': ({'kind': OwnInit}, 'OwnInit initialises itself in a way of its own'),
    'get_data_info': ({'kind': OwnInfo}, 'OwnInfo has a get_data_info of its own'),
    'state': (
        {'kind': KeepsIndex},
        'it keeps a Logger, which is no plain data',
    ),
    'argument': (
        {'kind': Odd},
        'attribute chooser: a builtin_function_or_method, which is no plain data',
    ),
    'a folder': (
        {'kind': Listing},
        'it reads what is in a folder, which may change',
    ),
    'a thread': (
        {'kind': Threaded},
        'it starts threads or processes, whose files are unseen',
    ),
    'a program': (
        {'kind': Forking},
        'it starts threads or processes, whose files are unseen',
    ),
    'its class': (
        {'kind': Counting},
        'parsing it changes its class, or a value of a module',
    ),
    'a module': (
        {'kind': Noting},
        'parsing it changes its class, or a value of a module',
    ),
    'no file': (
        {'kind': Hopeful},
        'it looks for a file that is not there, and may come',
    ),
}


@pytest.mark.parametrize('case', REFUSED)
def test_what_is_not_safe_is_parsed_and_said(data, folder, monkeypatch, case):
    given, reason = REFUSED[case]
    if case == 'a backend':
        local = {'backend': 'local'}
        monkeypatch.setattr(
            'mmdet.datasets.coco.get_local_path',
            lambda path, backend_args: __import__(
                'mmengine.fileio', fromlist=['get_local_path']
            ).get_local_path(path, backend_args=local),
        )
    for _ in range(2):
        with Start(folder) as start:
            for _ in range(2):
                ours = build_coco(data, **given)
            assert start.cache.idle_reason == (
                'no data set could be kept, for the reasons above'
            )
        assert start.cached == [False, False]
        assert [found.refused for found in start.found] == [reason, reason]
        # once is enough
        (line,) = start.logger.lines
        assert line.endswith(f' are parsed and not kept: {reason}.')
    plain = build_coco(data, **given)
    assert len(ours) == len(plain)
    assert ours.get_data_info(0) == plain.get_data_info(0)


@pytest.mark.parametrize('planted', ['another owner', 'a link', 'written by all'])
def test_what_others_planted_is_parsed_anew(data, folder, planted):
    with Start(folder):
        build_coco(data)
    (path,) = folder.iterdir()
    if planted == 'another owner':
        if os.geteuid():
            pytest.skip('only root gives files away')
        os.chown(path, 4321, -1)
    elif planted == 'a link':
        path.rename(folder.parent / 'elsewhere')
        path.symlink_to(folder.parent / 'elsewhere')
    else:
        path.chmod(0o666)
    with Start(folder) as start:
        assert_same(build_coco(data), build_coco(data))
    assert start.cached[0] is False
    reasons = {
        'another owner': 'belongs to another user (uid 4321)',
        'a link': 'is a link',
        'written by all': 'may be written by others (mode 0666)',
    }
    (line,) = start.logger.lines
    assert line.endswith(f'not kept: {path} {reasons[planted]}.')


@pytest.mark.parametrize('place', ['middle', 'end'])
def test_a_damaged_file_is_said_parsed_and_kept_anew(data, folder, place):
    with Start(folder):
        build_coco(data)
    (path,) = folder.iterdir()
    whole = bytearray(path.read_bytes())
    if place == 'end':
        del whole[-1]
    else:
        # the same size, in the middle of the samples
        whole[(12288 + len(whole)) // 2] ^= 0x10
    path.write_bytes(whole)
    with Start(folder) as start:
        assert_same(build_coco(data), build_coco(data))
    assert start.cached == [False, True]
    damaged, kept_anew = start.logger.lines
    assert f'{path} is damaged: ' in damaged
    assert damaged.endswith('train.json (CocoDataset) are parsed and kept anew.')
    assert kept_anew.endswith('are kept for the next start.')
    with Start(folder) as start:
        assert_same(build_coco(data), build_coco(data))
    assert start.logger.lines == []


def test_a_folder_that_others_may_write_is_not_used(data, folder):
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    start = Start(folder)
    with pytest.raises(RefusalError) as refused:
        start.__enter__()
    start.watch.close()
    reason = f'{folder} may be written by others (mode 0777); annotations are parsed'
    assert str(refused.value) == reason


@pytest.mark.parametrize('place', ['cache', 'made/by/us'])
def test_the_cache_never_lies_beside_the_data(data, place):
    with Start(data / 'coco' / place) as start:
        build_coco(data)
    assert 'lies beside the data' in start.logger.lines[0]
    assert list((data / 'coco' / place).iterdir()) == []


def test_a_full_disk_is_said_and_leaves_nothing(data, folder, monkeypatch):
    def full(descriptor: int, part: Any) -> None:
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr('mmgpu_hooks.measure.annotation_cache._write_all', full)
    with Start(folder) as start:
        ours = build_coco(data)
    assert_same(ours, build_coco(data))
    assert 'No space left on device' in start.logger.lines[0]
    assert list(folder.iterdir()) == []


def parse_in_child(data: Path, folder: Path, answers: Any) -> None:
    """Builds a data set while other processes do too; sends a sample and log lines."""
    with Start(folder) as start:
        dataset = build_coco(data)
    sample = dataset.get_data_info(3)
    answers.put((sample, len(dataset), list(start.logger.lines)))


def test_starts_at_the_same_time_wait_for_nobody(data, folder):
    context, plain = multiprocessing.get_context('fork'), build_coco(data)
    answers = context.SimpleQueue()
    children = [
        context.Process(target=parse_in_child, args=(data, folder, answers))
        for _ in range(4)
    ]
    for child in children:
        child.start()
    found = [answers.get() for _ in children]
    for child in children:
        child.join()
    for sample, length, lines in found:
        assert (sample, length) == (plain.get_data_info(3), len(plain))
        assert not [line for line in lines if 'not kept' in line]
    assert len(list(folder.iterdir())) == 1


def read_samples(dataset: Any, answers: Any) -> None:
    """Reads all samples of a data set, in a worker process."""
    samples = [dataset.get_data_info(index) for index in range(len(dataset))]
    kind = type(dataset.data_bytes).__name__
    answers.put((pickle.dumps(samples), kind, 'full_init' in vars(dataset)))


@pytest.mark.parametrize('method', ['fork', 'spawn'])
def test_workers_share_what_is_mapped(data, folder, method):
    with Start(folder):
        dataset = build_coco(data)
    plain = build_coco(data)
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    worker = context.Process(target=read_samples, args=(dataset, answers))
    worker.start()
    samples, kind, is_watched = answers.get()
    worker.join()
    expected = [plain.get_data_info(index) for index in range(len(plain))]
    assert pickle.loads(samples) == expected
    assert (kind, is_watched) == ('MappedArray', False)


def test_subsets_and_copies_are_data_sets_of_their_own(data, folder):
    with Start(folder):
        ours = build_coco(data)
    plain = build_coco(data)
    for change in (
        lambda dataset: dataset.get_subset(4),
        lambda dataset: dataset.get_subset([2, 0]),
        lambda dataset: dataset.get_subset(-3),
        copy.deepcopy,
        lambda dataset: pickle.loads(pickle.dumps(dataset)),
    ):
        assert_same_samples(change(ours), change(plain))


def assert_same_samples(ours: Any, plain: Any) -> None:
    assert len(ours) == len(plain) > 0
    for index in range(len(plain)):
        assert ours.get_data_info(index) == plain.get_data_info(index)


def test_a_data_set_that_raises_is_left_alone(data, folder):
    with Start(folder) as start, pytest.raises(FileNotFoundError):
        build_coco(data, ann_file='none.json')
    assert start.watch._pending == {}
    assert open.__module__ in ('io', '_io')


def test_lazy_data_sets_are_as_they_were(data):
    with Start(None) as start:
        lazy = build_coco(data, lazy_init=True)
        assert 'full_init' in vars(lazy)
    assert 'full_init' not in vars(lazy)
    assert start.found == []
    assert_same(lazy, build_coco(data))


def test_phases_are_timed(data, monkeypatch):
    load = CocoDataset.load_data_list

    def slow(self: Any) -> Any:
        time.sleep(0.05)
        return load(self)

    monkeypatch.setattr(CocoDataset, 'load_data_list', slow)
    with Start(None) as start:
        dataset = build_coco(data)
    (found,) = start.found
    assert found.read_s >= 0.05 > found.read_cpu_s
    assert 0 < found.filter_s < 0.05
    assert found.wall_s >= found.read_s + found.filter_s + found.serialise_s
    assert (found.samples, found.files) == (len(dataset), 1)
    assert found.bytes == dataset.data_bytes.nbytes
    assert found.file_bytes == (data / 'coco' / 'train.json').stat().st_size
