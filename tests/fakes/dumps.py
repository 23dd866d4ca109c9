"""Synthetic dumps of NCCL's flight recorder in the format of torch 2.13."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

GROUP = ('0', 'default_pg')
REDUCE, SPREAD = 'nccl:all_reduce', 'nccl:broadcast'


def make_entry(number: int, name: str, size: int = 64, **more: Any) -> dict[str, Any]:
    """Returns a collective's entry in a flight recorder dump of torch 2.13."""
    calls = ({'name': 'forward', 'filename': '/w/heads.py', 'line': 88},)
    return {
        'record_id': number,
        'pg_id': 0,
        'process_group': GROUP,
        'collective_seq_id': number,
        'p2p_seq_id': 0,
        'op_id': number,
        'profiling_name': name,
        'time_created_ns': 10**9 * number,
        'duration_ms': None,
        'input_sizes': ((size,),),
        'input_dtypes': ('Float',),
        'output_sizes': ((size,),),
        'output_dtypes': ('Float',),
        'state': 'completed',
        'time_discovered_started_ns': None,
        'time_discovered_completed_ns': None,
        'retired': False,
        'timeout_ms': 600_000,
        'is_p2p': False,
        'frames': list(calls),
        **more,
    }


def make_dump(entries: Sequence[dict[str, Any]], ranks: str) -> dict[str, Any]:
    config = {'0': {'name': '0', 'desc': 'default_pg', 'ranks': ranks}}
    return {
        'version': '2.10',
        'comm_lib_version': '2.27.5',
        'pg_config': config,
        'pg_status': {},
        'entries': list(entries),
    }


def write_dumps(
    folder: Path, ranks: Mapping[int, list[dict[str, Any]]], size: int | None = None
) -> str:
    """Writes a flight recorder dump for each rank; returns the path prefix.

    Returns:
        What stands before a rank's number in the names.
    """
    size = size or len(ranks)
    for rank, entries in ranks.items():
        dump = make_dump(entries, str(list(range(size))))
        (folder / f'trace_rank_{rank}').write_bytes(pickle.dumps(dump, protocol=2))
    return str(folder / 'trace_rank_')
