"""Finds the COCO result files of a config's last validation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mmgpu_hooks.config.loading import FlatConfig, bare_name

_METRICS = 'CocoMetric', 'FastCocoMetric'
_KINDS = 'bbox', 'segm'
_ARGUMENTS = 'type', 'ann_file', 'outfile_prefix'


@dataclass(frozen=True)
class KeptResults:
    """Result files of a COCO metric's last validation, with the annotation file."""

    annotations: Path
    """Path of the ground truth annotations, in COCO's format."""
    files: dict[str, Path]
    """Result files of the last validation, by kind: ``bbox`` or ``segm``."""


def find_kept_results(config: FlatConfig) -> KeptResults | None:
    """Finds the result files that ``outfile_prefix`` of ``val_evaluator`` names.

    Args:
        config: As it was trained.

    Returns:
        ``None`` where the evaluator is another one, or nothing was kept.
    """
    given = {key: config.get(('val_evaluator', key)) for key in _ARGUMENTS}
    truth, prefix = given['ann_file'], given['outfile_prefix']
    is_coco = bare_name(given['type']) in _METRICS
    if not is_coco or not isinstance(truth, str) or not isinstance(prefix, str):
        return None
    found = {kind: Path(f'{prefix}.{kind}.json') for kind in _list_kinds(config)}
    files = {kind: path for kind, path in found.items() if path.is_file()}
    is_whole = Path(truth).is_file() and files
    return KeptResults(Path(truth), files) if is_whole else None


def _list_kinds(config: FlatConfig) -> list[str]:
    """Lists the result types that a config's COCO metric evaluates: ``bbox``, ``segm``.

    ``metric`` is a name or a list of names.
    """
    metric = ('val_evaluator', 'metric')
    values = [value for path, value in config.items() if path[:2] == metric]
    named = [value for value in values if value in _KINDS]
    # what is left out, and proposals, are boxes
    return [str(kind) for kind in named] or ['bbox']
