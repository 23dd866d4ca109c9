"""Writes verdict, time shares and recommendation of a run into W&B and MLflow.

Where the visualizer of a run has MMEngine's ``WandbVisBackend`` or
``MLflowVisBackend``, and while their run is open: LoggerHook closes both after the
train loop. Neither package is imported here; the backends hold them. W&B gets summary
fields, MLflow tags for texts and metrics for figures.

A server that does not answer is asked for minutes by both clients. So a thread writes,
which is waited for as long as :data:`LIMIT_S`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Union

from mmengine import visualization

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.schema.recorded import VerdictRecord
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.summary_fields import list_summary_fields

TRACKERS_SOURCE = 'summary fields'
"""Name in warnings of the code that writes into W&B and MLflow."""

LIMIT_S = 10.0
"""Maximum seconds to wait for writes to all of a run's experiment trackers."""

_THREAD = 'mmgpu-trackers'

_Fields = Mapping[str, Union[str, float]]


def write_summary_fields(
    visualizer: Any, verdict: VerdictRecord, limit_s: float = LIMIT_S
) -> None:
    """Writes a verdict's fields into the run's open experiment trackers (W&B, MLflow).

    Args:
        visualizer: MMEngine's, of the run.
        verdict: Of the whole run.
        limit_s: Longest wait, s.

    Raises:
        SourceError: If a tracker does not answer in time, or Ctrl-C is pressed; its
            thread goes on.
        Exception: Of a tracker that failed, once the others have their fields.
    """
    writes = [*_list_writes(visualizer, list_summary_fields(verdict))]
    if not writes:
        return
    failures: list[Exception] = []

    def write_all() -> None:
        for write in writes:
            try:
                write()
            except Exception as error:  # noqa: BLE001  # the next one may work
                failures.append(error)

    thread = threading.Thread(target=write_all, name=_THREAD, daemon=True)
    thread.start()
    try:
        thread.join(limit_s)
    except KeyboardInterrupt:
        # the training is over, and goes on to its end without the fields
        raise SourceError(phrase('Ctrl-C ended the wait for W&B or MLflow')) from None
    if thread.is_alive():
        raise SourceError(
            phrase('W&B or MLflow gave no answer in {limit_s:g} s', limit_s=limit_s)
        )
    if failures:
        raise failures[0]


def _list_writes(visualizer: Any, fields: _Fields) -> Iterator[Callable[[], None]]:
    """Returns functions that write a verdict's fields, one per open tracker run."""
    # its public methods give a backend by name, which a config may choose
    backends = getattr(visualizer, '_vis_backends', {})
    for backend in backends.values():
        for name, open_run in _OPENING.items():
            kind = getattr(visualization, name, None)
            if kind is not None and isinstance(backend, kind):
                # here: which run is MLflow's depends on the thread
                write = open_run(backend.experiment, fields)
                if write is not None:
                    yield write


def _open_wandb(wandb: Any, fields: _Fields) -> Callable[[], None] | None:
    run = wandb.run
    return None if run is None else partial(run.summary.update, dict(fields))


def _open_mlflow(mlflow: Any, fields: _Fields) -> Callable[[], None] | None:
    run = mlflow.active_run()
    if run is None:
        return None
    client = mlflow.tracking.MlflowClient()

    def write() -> None:
        for name, value in fields.items():
            if isinstance(value, str):
                client.set_tag(run.info.run_id, name, value)
            else:
                client.log_metric(run.info.run_id, name, value)

    return write


_OPENING: Mapping[str, Callable[[Any, _Fields], Callable[[], None] | None]] = {
    'WandbVisBackend': _open_wandb,
    'MLflowVisBackend': _open_mlflow,
}
"""Functions that prepare a write to a tracker's open run, by MMEngine backend class."""
