"""Keeps what was predicted beside what was measured, one JSON line per verification."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from msgspec import structs

from mmgpu_hooks.configfile.write import verify_output
from mmgpu_hooks.schema import Verification
from mmgpu_hooks.telemetry.clock import wall_unix_s
from mmgpu_hooks.telemetry.host.limits import read_host_limits

LEDGER_NAME = 'calibration.jsonl'
LEDGER_VERSION = 1
"""Raised when a key of a line changes its meaning or goes away."""


def write_pair(
    folder: Path,
    verification: Verification,
    *,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    config: str,
    run_id: str | None,
    versions: Mapping[str, str],
) -> Path:
    """Append one line to the ledger of a work folder, with the limits of this host.

    Args:
        folder: Where the ledger is, or is begun.
        verification: What was measured, and what had been predicted.
        before: Settings by dotted key.
        after: Likewise.
        config: What both trained.
        run_id: Of the run whose evidence the prediction rests on.
        versions: Of what trained.

    Returns:
        The file.

    Raises:
        OSError: If it cannot be written; nothing of the line is left then.
    """
    line = {
        'version': LEDGER_VERSION,
        'unix_s': round(wall_unix_s(), 3),
        'run_id': run_id,
        'config': config,
        'before': dict(before),
        'after': dict(after),
        'predicted_gain': verification.predicted_gain,
        'measured_gain': asdict(verification.gain),
        'before_iter_s': verification.before_s,
        'after_iter_s': verification.after_s,
        'before_start_s': verification.before_start_s,
        'after_start_s': verification.after_start_s,
        'iterations': verification.iterations,
        'external_cpu_cores': verification.external_cpu_cores,
        'host': structs.asdict(read_host_limits(ranks_on_host=1)),
        'versions': dict(versions),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LEDGER_NAME
    verify_output(path)
    raw = (json.dumps(line) + '\n').encode()
    with path.open('ab', buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        if file.write(raw) < len(raw):
            file.truncate(end)
            raise OSError(f'{path}: only a part of a line could be written')
    return path
