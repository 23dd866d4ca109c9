"""Planted ends of real trainings, and what the log and ``mmgpu why`` say of them.

Each case trains a toy model on MMEngine's own Runner, with the hook on, in a process of
its own; one thing in it hangs, dies or raises. `mmgpu why` is asked as soon as the
training has ended, or as soon as its watchdog has spoken. Twins are as slow in one
place and end well: every word of the watchdog there is a false alarm.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from benchmarks.harness import (
    Benchmark,
    Figure,
    ask,
    at_least,
    at_most,
    exactly,
    render_table,
    say,
)

ITERATIONS, BATCH, WORKERS = 40, 2, 2
AT = 27
"""The sample in which it happens: batch 13, which worker 1 loads."""
AT_ITERATION = 20
STUCK_AFTER_S, DEFAULT_AFTER_S = 5.0, 60.0
IN_LOG_S = 90.0
"""Within this time the log must name worker and sample, at the default."""
REPEATS, TWIN_REPEATS, AT_ONCE = 3, 5, 6
_PATIENCE_S = 240.0
_NEW_MOUNTS = 0x20000
_LOCK = threading.Lock()
_ASKING = threading.Lock()


@dataclass(frozen=True)
class Case:
    """One planted end.

    Attributes:
        causes: Names that are right.
        at: Where it is planted: ``sample``, ``iteration``, or elsewhere.
        stands: How many ranks stand still and say so, rather than end.
        sample: That must be named, with worker 1.
        ranks: Processes that train together.
    """

    causes: tuple[str | None, ...]
    plant: Callable[[Path], Any] | None = None
    at: str = 'sample'
    stands: int = 0
    sample: int | None = None
    worker: int = 1
    workers: int = WORKERS
    ranks: int = 1
    rank: int | None = None
    is_twin: bool = False
    stuck_after_s: float = STUCK_AFTER_S
    needs: str = ''


def sleep_for_ever(_: Path) -> None:
    time.sleep(3600)


def burn_for_ever(_: Path) -> None:
    while True:
        sum(range(10_000))


def kill(number: int) -> Callable[[Path], None]:
    return lambda _: os.kill(os.getpid(), number)


def open_missing_file(_: Path) -> None:
    Path(f'data/train/{AT:012d}.jpg').read_bytes()


def read_fifo(folder: Path) -> None:
    path = folder / f'{AT:012d}.jpg'
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path)
    path.read_bytes()


def backtrack_for_ever(_: Path) -> None:
    re.match('(a+)+b', 'a' * 64)


def take_lock(_: Path) -> None:
    with _LOCK:
        pass


def limit_files(_: Path) -> None:
    used = max(int(name) for name in os.listdir('/proc/self/fd'))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2, used + 2))


def raise_on_rank_1(_: Path) -> None:
    if os.environ['RANK'] == '1':
        raise ValueError('boxes of this image have no area')


def kill_rank_1(_: Path) -> None:
    if os.environ['RANK'] == '1':
        os.kill(os.getpid(), signal.SIGKILL)


def sleep_on_rank_1(_: Path) -> None:
    if os.environ['RANK'] == '1':
        time.sleep(3600)


def be_killed_for_memory(folder: Path) -> None:
    (folder / 'group' / 'memory.events').write_text('oom 1\noom_kill 1\n')
    os.kill(os.getpid(), signal.SIGKILL)


def lose_card(_: Path) -> None:
    time.sleep(2.0)
    raise RuntimeError('CUDA error: unspecified launch failure')


def debug(_: Path) -> None:
    import pdb

    class Typist:
        encoding = 'utf-8'

        def readline(self) -> str:
            time.sleep(2.5 * STUCK_AFTER_S)
            return 'continue\n'

    pdb.Pdb(stdin=Typist(), stdout=sys.stderr, readrc=False).set_trace()  # type: ignore[arg-type]


CASES = {
    'a sample that sleeps for ever': Case(
        ('worker_stuck',), sleep_for_ever, stands=1, sample=AT
    ),
    'a sample that burns for ever': Case(
        ('worker_stuck',), burn_for_ever, stands=1, sample=AT
    ),
    'a lock held while workers fork': Case(
        ('worker_deadlock',), take_lock, 'lock', stands=1, sample=0, worker=0
    ),
    'a worker killed by SIGKILL': Case(('worker_killed',), kill(signal.SIGKILL)),
    'a worker killed by SIGSEGV': Case(('worker_killed',), kill(signal.SIGSEGV)),
    'a worker stopped by SIGSTOP': Case(
        ('worker_stuck',), kill(signal.SIGSTOP), stands=1, sample=AT
    ),
    'an exception in a sample': Case(
        ('sample_raised',), open_missing_file, sample=AT, worker=-1
    ),
    'a FIFO that nobody writes to': Case(
        ('storage_stalled',), read_fifo, stands=1, sample=AT
    ),
    '/dev/shm full': Case(('shm_full',), at='shm', stands=1, needs='mount'),
    'too few open files': Case(('open_files',), limit_files, 'iteration'),
    'the disk full': Case(('disk_full',), at='disk', needs='mount'),
    'killed for memory in a control group': Case(
        ('oom_cgroup',), be_killed_for_memory, 'iteration'
    ),
    'kill -9 of the run': Case(('interrupted',), kill(signal.SIGKILL), 'iteration'),
    'kill -9 of one of two ranks': Case(
        ('rank_lost',), kill_rank_1, 'iteration', ranks=2, rank=1
    ),
    'a rank raises, the other waits': Case(
        ('rank_lost',), raise_on_rank_1, 'iteration', stands=1, ranks=2, rank=1
    ),
    'a rank loads, the other waits': Case(
        ('worker_stuck',),
        sleep_on_rank_1,
        stands=2,
        sample=AT,
        ranks=2,
        worker=0,
        rank=1,
    ),
    'a card lost in mid-run': Case(('gpu_lost',), lose_card, 'iteration', needs='card'),
    "C code that holds Python's lock": Case(
        ('worker_stuck',), backtrack_for_ever, stands=1, workers=0
    ),
    'NaN losses': Case(('nan_loss',), at='loss'),
    'a typo in the config': Case(('config_error',), at='config'),
    'Ctrl-C': Case(('interrupted',), kill(signal.SIGINT), 'iteration'),
    'a sample that sleeps, at the default of 60 s': Case(
        ('worker_stuck',),
        sleep_for_ever,
        stands=1,
        sample=AT,
        stuck_after_s=DEFAULT_AFTER_S,
    ),
    'a slow first epoch': Case((None,), at='first epoch', is_twin=True),
    'a long validation': Case((None,), at='validation', is_twin=True),
    'a slow save': Case((None,), at='save', is_twin=True),
    "a debugger's pause": Case((None,), debug, 'iteration', is_twin=True),
}
QUICK = (
    'a sample that sleeps for ever',
    'a worker killed by SIGKILL',
    'an exception in a sample',
    'a FIFO that nobody writes to',
    'Ctrl-C',
    "a debugger's pause",
)


def mount_small(path: Path, mib: float) -> None:
    """Put a small file system at a path, for this process and its children alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    path.mkdir(exist_ok=True)
    if libc.unshare(_NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), 'unshare(CLONE_NEWNS)')
    subprocess.run(['mount', '--make-rprivate', '/'], check=True)
    size = f'size={int(mib * 1024)}k'
    subprocess.run(['mount', '-t', 'tmpfs', '-o', size, 'tmpfs', path], check=True)


def play(name: str, folder: Path) -> None:
    """Train with the planted end, in this process."""
    case = CASES[name]
    if case.needs == 'card':
        sys.path.append(os.environ['MMGPU_MOCK_CARD'])
        import adapter  # noqa: F401  # before mmengine
    import torch
    from mmengine.dataset import pseudo_collate
    from mmengine.evaluator import BaseMetric
    from mmengine.hooks import Hook
    from mmengine.model import BaseModel
    from mmengine.runner import Runner
    from torch.utils.data import Dataset

    torch.set_num_threads(1)

    class Images(Dataset[dict[str, Any]]):
        metainfo: dict[str, Any] = {}  # noqa: RUF012

        def __init__(self, length: int, item_s: float = 0.005) -> None:
            self.length, self.item_s = length, item_s

        def __len__(self) -> int:
            return self.length

        def __getitem__(self, index: int) -> dict[str, Any]:
            time.sleep(self.item_s)
            if index == AT and case.plant and case.at == 'sample':
                note_begin(folder)
                case.plant(folder)
            if case.at == 'lock':
                note_begin(folder)
                take_lock(folder)
            if case.at == 'first epoch' and not (folder / 'second').exists():
                time.sleep(0.7 * STUCK_AFTER_S * (index < 4))
            side = 1024 if case.at == 'shm' and index == AT else 8
            return {'inputs': torch.ones(3, side, side), 'data_samples': 1.0}

    class Model(BaseModel):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Conv2d(3, 4, 3)
            self.ballast = torch.nn.Linear(300, 300, bias=False)
            self.steps = 0

        def forward(self, inputs: Any, data_samples: Any = None, mode: str = '') -> Any:
            found = self.layer(torch.stack(inputs)).mean()
            if mode != 'loss':
                return [found]
            time.sleep(0.02)
            self.steps += 1
            if case.at == 'loss' and self.steps > AT_ITERATION:
                found = found * float('nan')
            return {'loss': found + 0.0 * self.ballast.weight.sum()}

    class Score(BaseMetric):
        def process(self, data_batch: Any, data_samples: Any) -> None:
            time.sleep(0.5)
            self.results.append(1.0)

        def compute_metrics(self, results: list[Any]) -> dict[str, float]:
            time.sleep(2 * STUCK_AFTER_S)
            return {'score': 1.0}

    class Plant(Hook):
        def after_train_iter(self, runner: Any, batch_idx: int, **_: Any) -> None:
            if batch_idx == AT_ITERATION and case.plant and case.at == 'iteration':
                note_begin(folder)
                case.plant(folder)

        def after_train_epoch(self, runner: Any) -> None:
            (folder / 'second').touch()

        def before_save_checkpoint(self, runner: Any, checkpoint: Any) -> None:
            if case.at == 'save':
                time.sleep(2 * STUCK_AFTER_S)

    if 'memory in a control group' in name:
        plant_group(folder / 'group')
    if case.at == 'shm':
        mount_small(Path('/dev/shm'), 4)
    if case.at == 'disk':
        mount_small(folder / 'disk', 0.125)
    if case.at == 'lock':
        threading.Thread(target=_LOCK.acquire).start()
    checkpoint = {'type': 'CheckpointHook', 'interval': -1}
    if case.at in ('disk', 'save'):
        checkpoint = {'type': 'CheckpointHook', 'interval': 25, 'by_epoch': False}
    if case.at == 'disk':
        checkpoint['out_dir'] = str(folder / 'disk')
    more: dict[str, Any] = {}
    if case.at == 'validation':
        loader = {'dataset': Images(16), 'sampler': {'type': 'DefaultSampler'}}
        more = dict(
            val_dataloader={**loader, 'batch_size': 1, 'num_workers': 0},
            val_cfg={},
            val_evaluator={'type': Score},
        )
    if case.ranks > 1:
        torch.distributed.init_process_group('gloo')
        more = dict(launcher='pytorch', env_cfg={'dist_cfg': {'backend': 'gloo'}})
        # without it MMEngine gives each rank a GPU of its own
        kind = 'MMDistributedDataParallel'
        more['cfg'] = {'model_wrapper_cfg': {'type': kind, 'device_ids': None}}
    runner = Runner(
        model=Model(),
        work_dir=str(folder / 'run'),
        train_dataloader={
            'dataset': Images(ITERATIONS * BATCH * case.ranks),
            'sampler': {'type': 'DefaultSampler', 'shuffle': False},
            'batch_size': BATCH,
            'num_workers': case.workers,
            'collate_fn': {'type': pseudo_collate},
        },
        train_cfg={'by_epoch': True, 'max_epochs': 2},
        optim_wrapper={
            'optimizer': {'type': 'SDG' if case.at == 'config' else 'SGD', 'lr': 0.01}
        },
        default_hooks={
            'logger': {'type': 'LoggerHook', 'interval': 5},
            'checkpoint': checkpoint,
            'gpu_efficiency': {
                'type': 'mmgpu_hooks.GPUEfficiencyHook',
                'stuck_after_s': case.stuck_after_s,
            },
        },
        custom_hooks=[Plant()],
        **more,
    )
    runner.train()


def note_begin(folder: Path) -> None:
    """Leave the time at which the planted end began."""
    with contextlib.suppress(FileExistsError), open(folder / 'began', 'x') as file:
        file.write(str(time.time()))


def plant_group(group: Path) -> None:
    """Make a folder this process's control group, with a limit of its own."""
    from mmgpu_hooks.hooks import sources
    from mmgpu_hooks.measure import now

    group.mkdir()
    (group / 'memory.events').write_text('oom 0\noom_kill 0\n')
    now.read_cgroup_folders = lambda *_: [(None, group)]  # type: ignore[assignment]
    read = sources.read_host_limits

    def read_limited(**options: Any) -> Any:
        import msgspec

        return msgspec.structs.replace(read(**options), cgroup_memory_bytes=2**33)

    sources.read_host_limits = read_limited  # type: ignore[assignment]


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(('127.0.0.1', 0))
        port: int = listening.getsockname()[1]
    return port


@contextlib.contextmanager
def started(name: str, case: Case, folder: Path) -> Iterator[list[Any]]:
    """The training's processes, which end with the block."""
    environ = {**os.environ, 'PYTHONUNBUFFERED': '1'}
    if case.needs == 'card':
        environ.update(write_card(folder))
    command = [sys.executable, '-m', 'benchmarks.why', '--play', name, str(folder)]
    port = str(free_port())
    running = []
    with open(folder / 'console.txt', 'wb') as console:
        for rank in range(case.ranks):
            if case.ranks > 1:
                environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=port)
                environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE='2')
            running.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=environ,
                )
            )
    try:
        yield running
    finally:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def write_card(folder: Path) -> dict[str, str]:
    """Environment in which the mock driver loses its cards after a while."""
    import yaml

    driver = Path(os.environ['MMGPU_MOCK_CARD'], 'driver')
    cards = yaml.safe_load((driver / 'mock-nvml-config-h100.yaml').read_text())
    failure = {'mode': 'lost', 'after_calls': 40, 'xid': {'code': 79}}
    cards['device_defaults']['failure'] = failure
    (folder / 'cards.yaml').write_text(yaml.safe_dump(cards))
    return {
        'LD_LIBRARY_PATH': str(driver),
        'MOCK_NVML_CONFIG': str(folder / 'cards.yaml'),
    }


@dataclass
class Played:
    """What was said of one training."""

    answers: dict[str, str | None]
    """Causes, by what was read: ``both``, ``folder``, ``console``."""
    is_right: bool = False
    is_named: bool | None = None
    """Whether log and answer name worker, sample and rank; ``None`` without."""
    in_log_s: float | None = None
    alarms: int = 0


def play_and_ask(name: str, case: Case, folder: Path) -> Played:
    """Train once, and ask when it stands still or has ended."""
    run, console = folder / 'run', folder / 'console.txt'
    folder.mkdir()
    named = f'Worker {case.worker} (pid', f'sample {case.sample}'
    in_log_s = None
    with started(name, case, folder) as processes:
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            time.sleep(0.2)
            if all(process.poll() is not None for process in processes):
                break
            log = ''.join(path.read_text() for path in run.glob('*/*.log'))
            if in_log_s is None and all(words in log for words in named):
                in_log_s = time.time() - float((folder / 'began').read_text())
            records = ''.join(p.read_text() for p in run.glob('*/vis_data/gpu_eff*'))
            is_mute = any(
                path.stat().st_size for path in run.glob('*/vis_data/*.stack')
            )
            # each rank has its own, a second or so apart
            noticed = records.count('"kind":"stuck"') + is_mute
            if 0 < case.stands <= noticed:
                time.sleep(1.0)
                break
        asked = {
            'both': [str(run), '--log', str(console)],
            'folder': [str(run)],
            'console': ['--log', str(console)],
        }
        found: dict[str, dict[str, Any]] = {}
        with _ASKING:
            for source, words in asked.items():
                with contextlib.suppress(SystemExit):
                    found[source] = ask('why', *words)
    answer = found.get('both', {'cause': 'no answer', 'sample': None, 'rank': None})
    played = Played({source: one['cause'] for source, one in found.items()})
    played.is_right = answer['cause'] in case.causes
    if case.sample is not None or case.rank is not None:
        is_sample = case.sample is None or str(case.sample) in str(answer['sample'])
        is_in_log = not case.stands or case.sample is None or in_log_s is not None
        played.is_named = (
            is_sample
            and is_in_log
            and (case.rank is None or answer['rank'] == case.rank)
        )
    played.in_log_s = in_log_s
    played.alarms = sum(
        path.read_text().count('"kind":"stuck"')
        for path in run.glob('*/vis_data/gpu_eff*')
    )
    if not played.is_right or played.is_named is False:
        say(f'{name}: {json.dumps(answer)}')
    return played


def find_lack(case: Case) -> str:
    """Why this machine cannot play a case; nothing where it can."""
    if case.needs == 'card' and 'MMGPU_MOCK_CARD' not in os.environ:
        return 'MMGPU_MOCK_CARD names no mock driver'
    if case.needs == 'mount':
        tried = subprocess.run(
            ['unshare', '-m', 'mount', '-t', 'tmpfs', 'tmpfs', '/mnt'],
            capture_output=True,
            check=False,
        )
        return 'mounting needs root' if tried.returncode else ''
    return ''


def list_figures(played: dict[str, list[Played]]) -> list[Figure]:
    """The targets over everything that was played."""
    ends = [one for name in played for one in played[name] if not CASES[name].is_twin]
    twins = [one for name in played for one in played[name] if CASES[name].is_twin]
    named = [one.is_named for one in ends if one.is_named is not None]
    slow = [
        one.in_log_s
        for name in played
        for one in played[name]
        if CASES[name].stuck_after_s == DEFAULT_AFTER_S
    ]
    figures = [
        at_least(
            'right cause',
            100 * sum(one.is_right for one in ends) / max(len(ends), 1),
            95,
            '%',
            f'of {len(ends)} trainings',
        ),
        at_least(
            'right worker, sample and rank',
            100 * sum(named) / max(len(named), 1),
            100,
            '%',
            f'of {len(named)} trainings',
        ),
        exactly(
            'false alarms',
            sum(one.alarms + (not one.is_right) for one in twins),
            0,
            note=f'in {len(twins)} twins',
        ),
    ]
    if slow:
        worst = None if None in slow else max(one for one in slow if one)
        figures.append(at_most('named in the log, at 60 s', worst, IN_LOG_S, 's'))
    return figures


def render_cases(played: dict[str, list[Played]], lacking: dict[str, str]) -> str:
    """A row per case."""
    rows = []
    for name, case in CASES.items():
        if name in lacking:
            rows.append([name, str(case.causes[0]), f'not played: {lacking[name]}'])
        runs = played.get(name, [])
        if not runs:
            continue
        times = [one.in_log_s for one in runs if one.in_log_s is not None]
        alone = [
            f'{sum(one.answers.get(source) in case.causes for one in runs)}'
            for source in ('folder', 'console')
        ]
        rows.append(
            [
                name,
                str(case.causes[0]),
                f'{sum(one.is_right for one in runs)} of {len(runs)}',
                *alone,
                f'{max(times):.1f}' if times else '',
            ]
        )
    header = ['planted', 'cause', 'right', 'folder alone', 'console alone', 'in log, s']
    return render_table(header, [row + [''] * (6 - len(row)) for row in rows])


def main(argv: list[str] | None = None) -> int:
    """Play, ask, judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--play', nargs=2, metavar=('CASE', 'FOLDER'))
    parser.add_argument('--only', help='cases whose name holds this')
    parser.add_argument('--repeats', type=int, help='instead of 3, and 5 of each twin')
    bench = Benchmark('why', __doc__ or '', argv, parser=parser, is_timed=False)
    options = bench.options
    if options.play:
        return play_case(options.play[0], Path(options.play[1]))
    chosen = {
        name: case
        for name, case in CASES.items()
        if (options.only or '') in name and (not bench.is_quick or name in QUICK)
    }
    lacking = {name: lack for name in chosen if (lack := find_lack(chosen[name]))}
    turns = []
    for name, case in chosen.items():
        repeats = options.repeats or (TWIN_REPEATS if case.is_twin else REPEATS)
        if bench.is_quick or case.stuck_after_s == DEFAULT_AFTER_S:
            repeats = 1
        turns += [(name, case)] * (repeats * (name not in lacking))
    # those that wait longest first
    turns.sort(key=lambda turn: (-turn[1].stuck_after_s, not turn[1].is_twin))
    played: dict[str, list[Played]] = defaultdict(list)
    root = Path(tempfile.mkdtemp(prefix='mmgpu-why-'))
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            futures = [
                (name, pool.submit(play_and_ask, name, case, root / str(number)))
                for number, (name, case) in enumerate(turns)
            ]
            for count, (name, future) in enumerate(futures, 1):
                played[name].append(future.result())
                say(f'{count} of {len(futures)}: {name}: {played[name][-1].answers}')
    finally:
        shutil.rmtree(root, ignore_errors=True)
    bench.add(*list_figures(played))
    return bench.finish(render_cases(played, lacking))


def play_case(name: str, folder: Path) -> int:
    """Train; a rank that raised lives on, as one with a thread of its own does."""
    # a shell's background job ignores it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        play(name, folder)
    except ValueError:
        if CASES[name].ranks == 1:
            raise
        traceback.print_exc()
        time.sleep(3600)
    return 0


if __name__ == '__main__':
    sys.exit(main())
