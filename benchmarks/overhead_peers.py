"""Part five: TraceML and nvitop's collector in the same loop, as information."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness import Figure

PEERS = {'traceml': ('TraceML', 'traceml-ai'), 'nvitop': ('nvitop', 'nvitop')}
_LIMIT_S = 180.0
_SESSION = 'overhead'

_MEASURES = {
    'traceml': 'loader, forward, backward, copies and optimizer of each step, CUDA '
    "peaks, host; not hooks, saves, validation, the loader's workers",
    'nvitop': 'host and devices each second; nothing of steps or their parts',
}


def measure_peers() -> list[Figure]:
    """What each peer costs; a peer that is not installed or fails is unknown."""
    figures = []
    for peer, (name, distribution) in PEERS.items():
        try:
            metadata.version(distribution)
        except metadata.PackageNotFoundError:
            note = 'not installed: see requirements/bench.txt'
            figures.append(Figure(f'{name} per iteration', None, 'us', note=note))
            continue
        try:
            figures += _tell(name, peer, _measure(peer))
        except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
            note = f'failed: {error}'
            figures.append(Figure(f'{name} per iteration', None, 'us', note=note))
    return figures


def _measure(peer: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        if peer != 'traceml':
            return _train(peer, [], folder)
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            port = free.getsockname()[1]
        arguments = ['--port', str(port), '--session', _SESSION]
        with _aggregator(port, folder) as aggregator:
            before_s, began_s = _cpu_s(aggregator), time.perf_counter()
            found = _train(peer, arguments, folder)
            share = _cpu_s(aggregator) - before_s
            found['aggregator'] = share / (time.perf_counter() - began_s)
            return found


@contextmanager
def _aggregator(port: int, folder: str) -> Iterator[psutil.Process]:
    """TraceML's own process, which its users start beside the training."""
    program = shutil.which('traceml', path=str(Path(sys.executable).parent))
    if program is None:
        raise OSError('the program traceml is not beside this Python')
    command = [program, 'serve', '--mode', 'summary', '--logs-dir', folder]
    command += ['--session-id', _SESSION, '--aggregator-port', str(port)]
    with open(Path(folder) / 'serve.txt', 'wb') as output:
        process = psutil.Popen(
            command, cwd=folder, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        # it also starts processes of its own
        family = [*process.children(recursive=True), process]
        for member in family:
            member.terminate()
        _, left = psutil.wait_procs(family, timeout=20)
        for member in left:
            member.kill()
        process.wait()


def _cpu_s(process: psutil.Process) -> float:
    total_s = 0.0
    for member in (process, *process.children(recursive=True)):
        try:
            times = member.cpu_times()
        except psutil.Error:
            continue
        total_s += times.user + times.system
    return total_s


def _train(peer: str, arguments: Sequence[str], folder: str) -> dict[str, Any]:
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, '-W', 'ignore', '-m', 'benchmarks.overhead_peer_run']
    done = subprocess.run(
        [*command, peer, *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        env={**os.environ, 'TMPDIR': folder, 'TRACEML_LOGS_DIR': folder},
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f'exit code {done.returncode}')
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _tell(name: str, peer: str, found: dict[str, Any]) -> list[Figure]:
    title = f'{name} {found["version"]}'
    raw_us, border_us = 1e6 * found['raw_s'], 1e6 * found['border_s']
    ends_ms, ends_border_ms = 1e3 * found['ends_s'], 1e3 * found['ends_border_s']
    threads = found['threads']
    figures = [
        Figure(
            f'{title} per iteration, median',
            raw_us - border_us,
            'us',
            note=f'net: raw {raw_us:.1f} less the borders {border_us:.1f}; p95 '
            f'{1e6 * found["p95_s"]:.0f}; measures {_MEASURES[peer]}',
        ),
        Figure(
            f'{title} per interval, median',
            ends_ms - ends_border_ms,
            'ms',
            note='' if peer == 'nvitop' else 'nothing of it is done per interval',
        ),
        Figure(
            f'{title} threads',
            100 * sum(threads.values()),
            '% of a core',
            note=', '.join(threads) or 'none',
        ),
    ]
    if 'aggregator' in found:
        share_pct = 100 * found['aggregator']
        note = 'a process of its own, its start included'
        figures.append(
            Figure(f'{title} aggregator', share_pct, '% of a core', note=note)
        )
    return figures
