"""Benchmark: errors in recorded parts of a training's start, gain by optimisations.

    python -m benchmarks.start [--quick] [--output]

Planted starts (slow parsing, a file for each image, slow weights, a slow ``load_from``,
slow compiling, slow first batch and step) and real ones: a COCO file of 100 MB, with
one rank and with two, and MMDetection on the demo's images. Each part is compared with
the seconds that the planted code, or a method of MMDetection or of MMEngine, measured
itself, and the sum with the age of the process. Then the same annotations kept and
mapped, the memory of four processes that share them, and a resume by the sampler beside
one that loads. Last, what a Python process takes longer to start below ``mmgpu run``.
10 minutes.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    RESULTS,
    Benchmark,
    Figure,
    at_least,
    at_most,
    exactly,
    find_evidence,
    say,
)
from benchmarks.python_start import measure_python
from benchmarks.start_training import STARTED
from mmgpu_hooks.experiment.demo_dataset import write_demo_dataset
from mmgpu_hooks.schema.recorded import StartRecord
from mmgpu_hooks.schema.run import read_evidence
from mmgpu_hooks.schema.run_folder import evidence_name

ROOT = RESULTS.parents[1]
FOLDER = Path('work_dirs/bench_start')
PART_PCT, PART_MS = 2.0, 10.0
"""Tolerance of a recorded part of the start: per cent or ms, whichever is larger."""
SUM_PCT = 1.0
LEAST_S = 0.05
"""Seconds that a part of a training start must take at least to be judged."""
LIMIT_S = 300.0
IMAGES, QUICK_IMAGES = 35_000, 2_000
"""Number of images in the COCO file: 100 MB by default, 6 MB in a quick run."""
FILES, QUICK_FILES = 3000, 200
SAMPLE_BATCHES = 90_000
_WORKERS = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark: judges recorded starts of trainings, and prints the table."""
    benchmark = Benchmark('start', __doc__ or '', argv)
    is_quick = benchmark.is_quick
    folder = FOLDER.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    planted = list_planted(folder, is_quick)
    for name, spec in planted.items():
        benchmark.add(*judge_start(name, folder / name, spec))
    if 'slow compile' not in planted:
        note = 'left out: torch.compile does not run here'
        benchmark.add(Figure('slow compile', None, note=note))
    coco = folder / 'coco.json'
    write_coco(coco, QUICK_IMAGES if is_quick else IMAGES)
    spec = {'kind': 'coco', 'file': str(coco)}
    size = f'{coco.stat().st_size / 1e6:.0f} MB of COCO'
    benchmark.add(*judge_start(size, folder / 'coco', spec))
    ranks = {**spec, 'ranks': 2}
    benchmark.add(*judge_start(f'{size}, two ranks', folder / 'ranks', ranks))
    if not is_quick:
        write_demo_dataset(folder.with_name('bench_whole_demo'))
        spec_of_demo = {'kind': 'demo', 'config': str(write_demo_config(folder))}
        benchmark.add(*judge_start('RTMDet-tiny', folder / 'demo', spec_of_demo))
    benchmark.add(*measure_cache(folder, spec))
    benchmark.add(*measure_resume(folder, is_quick))
    benchmark.add(*measure_python(is_quick))
    return benchmark.finish()


def list_planted(folder: Path, is_quick: bool) -> dict[str, dict[str, Any]]:
    """Returns the training starts to measure, and writes the files that they read."""
    files = folder / 'files'
    files.mkdir()
    for number in range(QUICK_FILES if is_quick else FILES):
        (files / f'{number:05d}.xml').write_text('<annotation/>')
    planted: dict[str, dict[str, Any]] = {
        'slow parsing': {'data': {'parse_s': 1.5}},
        'many files': {'data': {'files': str(files), 'parse_s': 0.2}},
        'slow weights': {'data': {}, 'model': {'weights_s': 1.0}},
        'slow load_from': {'data': {}, 'load_s': 1.0},
        'slow first batch': {'data': {'batch_s': 1.0}},
        'slow first step': {'data': {}, 'model': {'step_s': 1.0}},
        'slow parsing, two workers': {'data': {'parse_s': 0.5}, 'num_workers': 2},
    }
    if can_compile():
        planted['slow compile'] = {'data': {}, 'compile_s': 1.0}
    return {name: {'kind': 'planted', **spec} for name, spec in planted.items()}


def can_compile() -> bool:
    """True if ``torch.compile`` works here with a backend that needs no C compiler."""
    script = (
        "import torch\ntorch.compile(lambda x: x + 1, backend='eager')(torch.ones(1))"
    )
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', script],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return done.returncode == 0


def write_coco(path: Path, images: int) -> None:
    """Writes a COCO annotation file with polygons, 3 KB per image."""
    chosen = random.Random(0)
    listed, annotations = list[Any](), list[Any]()
    for number in range(images):
        listed.append(
            {
                'id': number,
                'file_name': f'{number:012d}.jpg',
                'width': 640,
                'height': 480,
            }
        )
        for _ in range(7):
            points = [round(chosen.uniform(0, 400), 2) for _ in range(36)]
            box = [round(chosen.uniform(0, 200), 2) for _ in range(2)] + [90.5, 60.25]
            annotations.append(
                {
                    'id': len(annotations) + 1,
                    'image_id': number,
                    'category_id': chosen.randrange(80) + 1,
                    'bbox': box,
                    'area': 5452.6,
                    'iscrowd': 0,
                    'segmentation': [points],
                }
            )
    categories = [{'id': number + 1, 'name': f'class {number}'} for number in range(80)]
    text = {'images': listed, 'annotations': annotations, 'categories': categories}
    path.write_text(json.dumps(text))


def write_demo_config(folder: Path) -> Path:
    """Writes a config that trains the demo's detector on the demo's images."""
    config = folder / 'demo.py'
    base = ROOT / 'configs' / 'demo' / 'rtmdet-tiny_demo.py'
    (folder / 'data').mkdir(exist_ok=True)
    (folder / 'data' / 'demo').symlink_to(folder.with_name('bench_whole_demo'))
    config.write_text(f"_base_ = '{base}'\n")
    return config


def train(
    folder: Path, spec: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> None:
    """Trains in one child process, or in one child process per rank.

    Raises:
        SystemExit: If it fails.
    """
    say(f'{folder.name} ...')
    folder.mkdir()
    words = ['-m', 'benchmarks.start_training', str(folder), json.dumps(dict(spec))]
    ranks = spec.get('ranks') or 1
    given = {
        **os.environ,
        'PYTHONPATH': str(ROOT),
        'OMP_NUM_THREADS': '1',
        # so that an error stands at the end of what is kept
        'PYTHONUNBUFFERED': '1',
        'WORLD_SIZE': str(ranks),
        'LOCAL_WORLD_SIZE': str(ranks),
        'MASTER_ADDR': '127.0.0.1',
        'MASTER_PORT': str(find_port()),
        **(environ or {}),
    }
    started = []
    for rank in range(ranks):
        own = {'RANK': str(rank), 'LOCAL_RANK': str(rank)}
        with (folder / f'console_{rank}.txt').open('w') as console:
            process = subprocess.Popen(
                [sys.executable, '-W', 'ignore', *words],
                cwd=folder.parent,
                stdout=console,
                stderr=subprocess.STDOUT,
                env={**given, **own, STARTED: str(time.monotonic())},
            )
        started.append(process)
    codes = [process.wait(LIMIT_S) for process in started]
    if any(codes):
        rank = next(rank for rank, code in enumerate(codes) if code)
        lines = (folder / f'console_{rank}.txt').read_text().splitlines()
        tail = '\n'.join(lines[-15:])
        raise SystemExit(f'expected the training in {folder} to end with 0:\n{tail}')


def find_port() -> int:
    """Returns a free TCP port of this host."""
    with socket.socket() as found:
        found.bind(('127.0.0.1', 0))
        port: int = found.getsockname()[1]
    return port


def read_start(folder: Path, rank: int = 0) -> StartRecord:
    """Returns the record of the training start from a rank's evidence file."""
    evidence = find_evidence(folder).with_name(evidence_name(rank))
    start = read_evidence(evidence).start
    if start is None:
        raise SystemExit(f'expected the account of a start in {evidence}, found none')
    return start


def read_truth(folder: Path, rank: int = 0) -> dict[str, float]:
    """Returns the true seconds of each part of the start, written by the training."""
    truth: dict[str, float] = json.loads((folder / f'truth_{rank}.json').read_text())
    return truth


def judge_start(name: str, folder: Path, spec: Mapping[str, Any]) -> Iterator[Figure]:
    """Returns figures that compare a start's recorded parts with the true seconds."""
    train(folder, spec)
    for rank in range(spec.get('ranks') or 1):
        start, truth = read_start(folder, rank), read_truth(folder, rank)
        label = f'{name}, rank {rank}' if spec.get('ranks') else name
        age_s = truth.pop('age')
        pss_kib = truth.pop('pss_kib')
        for part, planted_s in truth.items():
            found_s = start.parts_s.get(part, 0.0)
            if part == 'read':
                found_s = sum(each.read_s for each in start.data_sets)
            # of what was not planted, other work is most
            if planted_s < LEAST_S:
                continue
            off_ms = 1000 * (found_s - planted_s)
            limit_ms = max(PART_MS, 10 * PART_PCT * planted_s)
            note = f'{planted_s:.3f} s planted' if part != 'read' else ''
            yield at_most(f'{label}: {part} off', abs(off_ms), limit_ms, 'ms', note)
        off_pct = 100 * abs(start.wall_s - age_s) / age_s
        note = f'{start.wall_s:.2f} s of {age_s:.2f} s; {pss_kib / 1024:.0f} MiB'
        yield at_most(f'{label}: sum off the age', off_pct, SUM_PCT, '%', note)
        other_pct = 100 * start.parts_s.get('other', 0.0) / start.wall_s
        yield Figure(f'{label}: in no part', other_pct, '%')


_HOLD = """
import json, resource, sys, time
from mmdet.datasets import CocoDataset
from mmengine.dataset import BaseDataset
from mmgpu_hooks.measure.dataset_start import DatasetWatch
from mmgpu_hooks.optimize.annotations import AnnotationCache
import logging
watch = DatasetWatch(lambda function, *args: function(*args))
watch.open(BaseDataset)
if sys.argv[2] == 'kept':
    AnnotationCache(watch, logging.getLogger('start'))
names = tuple(f'class {number}' for number in range(80))
begun = time.process_time()
data = CocoDataset(ann_file=sys.argv[1], data_prefix={'img': ''}, pipeline=[],
                   metainfo={'classes': names},
                   filter_cfg={'filter_empty_gt': True, 'min_size': 32})
used = time.process_time() - begun
for index in range(len(data)):
    data.get_data_info(index)
print(json.dumps({'cpu_s': used, 'bytes': data.data_bytes.nbytes}), flush=True)
sys.stdin.readline()
smaps = open('/proc/self/smaps_rollup').read().splitlines()
print(next(line for line in smaps if line.startswith('Pss:')).split()[1], flush=True)
sys.stdin.readline()
"""


def hold(path: str, how: str, environ: Mapping[str, str], count: int) -> list[Any]:
    """Holds a data set in several processes at once, to measure their memory.

    Returns:
        Of each its CPU seconds for building it, and its PSS while all hold it, MiB.
    """
    held = [
        subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-c', _HOLD, path, how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={
                **os.environ,
                **environ,
                'PYTHONPATH': str(ROOT),
                'OMP_NUM_THREADS': '1',
            },
            # what is kept is of a folder: the one that trainings ran in
            cwd=Path(path).parent,
        )
        for _ in range(count)
    ]
    found: list[Any] = []
    for process in held:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, '')
        # MMDetection prints what it loads
        found.append(json.loads(next(line for line in lines if line[0] == '{')))
    for process, figures in zip(held, found):
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write('\n')
        process.stdin.flush()
        figures['pss_mib'] = int(process.stdout.readline()) / 1024
    for process in held:
        process.communicate('\n')
    return found


def measure_cache(folder: Path, spec: Mapping[str, Any]) -> Iterator[Figure]:
    """Returns figures on the gain of the ``annotation_cache`` at a training's start."""
    environ = {'MMGPU_CACHE': str(folder / 'cache' / 'annotations')}
    hook = {'optimize': 'annotations'}
    for number in range(2):
        run = folder / f'cache_{number}'
        train(run, {**spec, 'hook': hook}, environ)
        (data_set,) = read_start(run).data_sets
        what = 'first start, parsed and kept' if not number else 'next start, mapped'
        note = f'{data_set.wall_s:.3f} s by the clock'
        yield Figure(f'annotations, {what}: CPU', data_set.cpu_s, 's', note=note)
    yield exactly('annotations: mapped at the next start', int(data_set.is_cached), 1)
    pss, cpu = {}, {}
    for how in ('plain', 'kept'):
        say(f'memory of four processes, {how}')
        found = hold(str(spec['file']), how, environ, 4)
        pss[how] = sum(each['pss_mib'] for each in found)
        cpu[how] = sum(each['cpu_s'] for each in found) / len(found)
        size = found[0]['bytes'] / 2**20
        name = f'four processes that hold {size:.0f} MiB of samples, {how}: PSS'
        yield Figure(name, pss[how], 'MiB', note=f'{cpu[how]:.3f} s of CPU each')
    # one copy for all of them, and not one each
    saved = pss['plain'] - pss['kept']
    yield at_least('annotations: memory less', saved, 2.5 * size, 'MiB')
    ratio = cpu['plain'] / max(cpu['kept'], 1e-6)
    yield at_least('annotations: CPU less, times', ratio, 20)


def measure_resume(folder: Path, is_quick: bool) -> Iterator[Figure]:
    """Returns figures on the time to resume by skipping samples, not loading them."""
    from mmengine.dataset import InfiniteSampler
    from torch.utils.data import BatchSampler

    count = 40 if is_quick else 130
    seconds = {}
    for how, optimize in (('loading', None), ('the sampler', 'resume')):
        say(f'resume by {how}')
        script = RESUME.format(count=count, optimize=optimize, workers=_WORKERS)
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', '-c', script, str(folder / how)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'},
            check=True,
        )
        seconds[how], indices = json.loads(done.stdout.splitlines()[-1])
        seconds[f'{how} indices'] = indices
        yield Figure(f'resume at {count}, by {how}', seconds[how], 's')
    same = seconds['loading indices'] == seconds['the sampler indices']
    yield exactly('resume: the same batches follow', int(same), 1)
    less = seconds['loading'] / seconds['the sampler']
    yield Figure('resume: less time, times', less)
    sampler = BatchSampler(InfiniteSampler(range(118_287), seed=1), 16, False)
    drawn, begun_s = iter(sampler), time.process_time()
    for _ in range(SAMPLE_BATCHES):
        next(drawn)
    used_s = time.process_time() - begun_s
    yield at_most(f'{SAMPLE_BATCHES:,} batches off the sampler: CPU', used_s, 2.0, 's')


RESUME = """
import json, sys, time
import torch
from mmengine.hooks import Hook
from benchmarks.toy import HOOK, OneWeight, Sized, build_runner

class Slow(Sized):
    def __getitem__(self, index):
        time.sleep(0.02)
        return dict(inputs=torch.zeros(1), data_samples=index)

class Resumed(Hook):
    seen = []
    def before_run(self, runner):
        runner.train_loop._iter = {count}
    def before_train_epoch(self, runner):
        self.begun = time.perf_counter()
    def before_train_iter(self, runner, batch_idx, data_batch):
        if not self.seen:
            self.took = time.perf_counter() - self.begun
        self.seen.append(data_batch['data_samples'][0])

resumed = Resumed()
runner = build_runner(
    OneWeight(), Slow(1000), sys.argv[1],
    hooks=dict(gpu_efficiency=dict(HOOK, optimize={optimize!r}), resumed=resumed),
    loader=dict(num_workers={workers}, sampler=dict(type='InfiniteSampler', seed=3)),
    train_cfg=dict(by_epoch=False, max_iters={count} + 50),
    log_processor=dict(by_epoch=False),
)
runner.train()
print(json.dumps([resumed.took, list(map(int, resumed.seen))]), flush=True)
"""


if __name__ == '__main__':
    sys.exit(main())
