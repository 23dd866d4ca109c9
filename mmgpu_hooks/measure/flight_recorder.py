"""Reads NCCL flight recorder dumps of a training run, with torch's own reader.

Each rank keeps its newest collectives in memory, and writes them into a file when one
timed out. torch compares the files of all ranks; from that comparison the rank is taken
that is behind. Seen with dumps that were written by hand alone, never with NCCL's.

A dump is a pickle. It holds lists, names and numbers, so one that names any code is
refused, as is a list of ranks that is none: torch's reader would evaluate it.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.schema.judged import FlightRecord
from mmgpu_hooks.schema.recorded import RunRecord
from mmgpu_hooks.schema.regular import open_regular
from mmgpu_hooks.schema.text import phrase

_NAMES = 'TORCH_FR_DUMP_TEMP_FILE', 'TORCH_NCCL_DEBUG_INFO_TEMP_FILE'
"""Environment variables that name the flight recorder's files, newer torch first."""
_MOST_BYTES, _MOST_RANKS, _MOST_CALLS = 2**26, 1024, 4
_RANKS = re.compile(r'\[[\d, ]*\]')
_DIFFERENT = (
    'COLLECTIVE_TYPE_MISMATCH',
    'SIZE_OR_SYNTAX_MISMATCH',
    'COLLECTIVE_DTYPE_MISMATCH',
)
"""Torch's names for a collective whose type, size or data type differs among ranks."""


def list_dump_prefixes(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Lists path prefixes of NCCL flight recorder dumps; appending a rank gives a path.

    Args:
        environ: Of the process that trains.

    Returns:
        The one that a variable names, or else the places where versions of torch write.
    """
    for name in _NAMES:
        if environ.get(name):
            return (os.path.abspath(environ[name]),)
    cache = environ.get('XDG_CACHE_HOME')
    cache = cache or os.path.join(environ.get('HOME', '/tmp'), '.cache')
    folder = os.path.join(cache, 'torch')
    return (
        os.path.join(folder, 'comm_lib_trace_rank_'),
        os.path.join(folder, 'nccl_trace_rank_'),
        '/tmp/nccl_trace_rank_',
    )


def read_flight_record(runs: Sequence[RunRecord]) -> FlightRecord | None:
    """Compares the ranks' NCCL flight recorder dumps: finds the hanging collective.

    Args:
        runs: Run records of its ranks.

    Returns:
        ``None`` where no rank left a dump since the run began, or where all of them
        agree.

    Raises:
        SourceError: If dumps are there and cannot be read, in words for the user.
    """
    dumps = {rank: _read_dump(path) for rank, path in _find_dumps(runs).items()}
    if not dumps:
        return None
    try:
        _name_groups(dumps.values())
        collectives = _compare(dumps)
    except ImportError as error:
        raise SourceError(
            phrase(
                "reading NCCL's flight recorder needs a torch that has its reader, "
                'torch.distributed.flight_recorder ({error})',
                error=error,
            )
        ) from error
    except Exception as error:  # torch's reader asserts, and meets any content
        said = ' '.join(str(error).split())[:200]
        raise SourceError(
            phrase(
                "torch's reader of NCCL's flight recorder failed ({kind}: {error})",
                kind=type(error).__name__,
                error=said,
            )
        ) from error
    for collective in collectives:
        record = _describe(collective, dumps)
        if record is not None:
            return record
    return None


def _find_dumps(runs: Sequence[RunRecord]) -> dict[int, Path]:
    """Finds each rank's flight recorder dump, also of ranks that have no run record."""
    found: dict[int, Path] = {}
    prefixes = dict.fromkeys(prefix for run in runs for prefix in run.flight_recorder)
    began_s = min((run.started_unix_s for run in runs), default=0.0)
    for rank in range(
        min(max((run.world_size for run in runs), default=0), _MOST_RANKS)
    ):
        for prefix in prefixes:
            path = Path(f'{prefix}{rank}')
            # an older run may have left one there
            if path.is_file() and path.stat().st_mtime >= began_s:
                found.setdefault(rank, path)
    return found


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler that refuses all but lists, dictionaries, strings and numbers."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f'it names code: {module}.{name}')


def _read_dump(path: Path) -> dict[str, Any]:
    """Reads the NCCL flight recorder dump of one rank.

    Raises:
        SourceError: If it is none.
    """
    try:
        with open_regular(path) as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise SourceError(
                phrase(
                    '{path}: expected a dump of at most {most_bytes}',
                    path=path,
                    most_bytes=_MOST_BYTES,
                )
            )
        dump = _PlainUnpickler(io.BytesIO(content)).load()
        groups = dump['pg_config'].values()
        is_dump = isinstance(dump['entries'], list) and isinstance(dump['version'], str)
        if not is_dump or not all(_RANKS.fullmatch(group['ranks']) for group in groups):
            raise TypeError(phrase('its entries or its groups are no such thing'))
    except SourceError:
        raise
    except Exception as error:  # a pickle of any content may be there
        said = ' '.join(str(error).split())[:200]
        raise SourceError(
            phrase(
                "{path}: expected what NCCL's flight recorder dumps, found something "
                'else ({kind}: {error})',
                path=path,
                kind=type(error).__name__,
                error=said,
            )
        ) from error
    found: dict[str, Any] = dump
    return found


def _name_groups(dumps: Collection[dict[str, Any]]) -> None:
    """Gives the default process group in dumps the name that their entries use for it.

    torch 2.13 lists gloo's under an empty name.
    """
    called = {entry['process_group'][0] for dump in dumps for entry in dump['entries']}
    called -= {name for dump in dumps for name in dump['pg_config']}
    if len(called) != 1:
        return
    (name,) = called
    for dump in dumps:
        if '' in dump['pg_config']:
            group = dump['pg_config'].pop('')
            dump['pg_config'][name] = {**group, 'name': name}


def _compare(dumps: Mapping[int, dict[str, Any]]) -> Sequence[Any]:
    """Matches the ranks' collectives in order of their calls, by torch's function."""
    logger = logging.getLogger('Flight Recorder')
    # it would print its own findings, and miss a package for its tables
    logger.disabled = True
    try:
        from torch.distributed.flight_recorder.components.builder import build_db
        from torch.distributed.flight_recorder.components.config_manager import (
            JobConfig,
        )

        arguments = JobConfig().parse_args(['.', '--allow-incomplete-ranks'])
        details = {
            f'rank_{rank}': {
                'host_name': f'rank_{rank}',
                'rank': rank,
                # it takes entries away
                'entries': list(dump['entries']),
                'version': dump['version'],
                'pg_config': dump['pg_config'],
            }
            for rank, dump in sorted(dumps.items())
        }
        version = next(iter(dumps.values()))['version']
        collectives: Sequence[Any] = build_db(details, arguments, version).collectives
        return collectives
    finally:
        logger.disabled = False


def _describe(
    collective: Any, dumps: Mapping[int, dict[str, Any]]
) -> FlightRecord | None:
    """Describes a collective in which ranks lag or differ; ``None`` if none do."""
    expected = set(collective.expected_ranks)
    behind = set(collective.missing_ranks or ()) & set(dumps)
    others = {
        rank: _name(other.collective_name)
        for rank, other in (collective.mismatch_collectives or {}).items()
        if other.type_of_mismatch.state.name in _DIFFERENT
    }
    name = _name(collective.collective_name)
    if 2 * len(others) > len(expected) and len(set(others.values())) == 1:
        # most ranks differ from the one that torch begins with
        usual = next(iter(others.values()))
        others, name = dict.fromkeys(expected - set(others), name), usual
    if not behind and not others:
        return None
    calls = [
        f'{call["filename"]}:{call["line"]} in {call["name"]}'
        for call in collective.collective_frames
    ]
    return FlightRecord(
        name=name,
        number=int(collective.collective_seq_id),
        group=str(collective.pg_desc),
        behind=tuple(sorted(behind)),
        others=others,
        without_dump=tuple(sorted(expected - set(dumps))),
        calls=tuple(calls[:_MOST_CALLS]),
    )


def _name(profiled: str) -> str:
    """Returns the bare name of a collective: ``all_reduce`` for ``nccl:all_reduce``."""
    return profiled.partition(':')[2] or profiled
