"""Replaces and restores attributes of other libraries' objects, all listed in a table.

An attribute that the table does not name is refused. What somebody else has put in the
place of ours meanwhile stays. After a failure ours stay until the end and only pass
calls on, since a wrapper of somebody else may call them.

What others may call or wrap while training runs is replaced and restored here alone.
Other modules assign attributes of these kinds plainly. They are no patches: nobody else
wraps them, and who sets them knows when they end. ``tests/architecture/test_laws.py``
lists each.

- Methods inside a worker process, until it ends: PyTorch's ``fetch``
  (``loader/worker.py``) and the queue's ``put`` (``optimize/bundles.py``).
- State that the loader assigns itself and that another iterator takes over:
  ``_iterator``, ``_sampler_iter``, ``_index_sampler`` and ``_epoch``
  (``loader/switch.py``, ``optimize/resume.py``). ``loader/worker.py`` also corrects the
  ``_worker_init_fn`` of an iterator that was made while the loader's was patched.
- Data, not methods: a fetcher's ``dataset`` (``loader/worker.py``), restored as its
  probe closes; an optimizer's groups, MMEngine's histories, an averaged model's
  ``steps`` and a data set's arrays (``optimize/``); ``disabled`` of a logger, for one
  call (``flight_recorder.py``).
- Attributes of objects that the module has made (``optimize/coco_metric.py``).

``injected/sitecustomize.py`` must work without us: it replaces ``exec_module`` of a
module's loader for one call.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

REPLACED: Mapping[str, str] = {
    'register_hooks': "the Runner's, below `mmgpu run`: adds our hook",
    '__init__': (
        "BaseLoop's, until a Runner is built: the loader before its workers; the "
        "Runner's, below `mmgpu run`: when the first one is being built; BaseDataset's "
        'while training starts: each data set'
    ),
    'run': (
        "the train loop's: the recording begins and ends with it; the val and test "
        "loop's without a training: the timing ends with it"
    ),
    'call_hook': "the Runner's: times each hook; while training starts, all of them",
    'save_checkpoint': (
        "the Runner's: times saves and takes them apart; once more during a validation"
    ),
    'val_step': "the model's, during a validation: its forward pass",
    'test_step': "the model's, during a test: its forward pass",
    'process': "the evaluator's and its metrics', during a validation: times them",
    'evaluate': "the evaluator's and its metrics', likewise: results that are gathered",
    'compute_metrics': "a metric's, likewise",
    'barrier': "torch.distributed's, during a validation: waits for other ranks",
    'broadcast': 'likewise',
    'broadcast_object_list': 'likewise',
    'after_train_iter': "our own hook's: ends iterations",
    '_get_iterator': "a DataLoader's: sees its iterators and reaches its workers",
    'worker_init_fn': (
        "a DataLoader's, while it starts workers: measures inside them; where asked, "
        'seeds them by the iteration of a resumed run; until training ends, where '
        'asked: has small tensors sent by value, and other workers seeded'
    ),
    '_next_data': (
        "a loader iterator's: the exact wait for a batch; where asked, and other "
        'workers go on with its pass, their batches after its own'
    ),
    **dict.fromkeys(
        ('num_workers', 'prefetch_factor', 'persistent_workers'),
        "a DataLoader's, where asked, to tune it",
    ),
    **dict.fromkeys(
        ('batch_sampler', 'sampler', 'generator'),
        "a DataLoader's, while an iterator goes on with the pass of another one, or "
        'where asked behind what a resumed run skipped',
    ),
    '_iterator': (
        "an iteration-based loop's wrapper's, where asked, while a resumed run skips: "
        'gives nothing for each batch'
    ),
    'build_optim_wrapper': "the Runner's, while training starts: its time",
    **dict.fromkeys(
        ('build_val_loop', '_init_model_weights', 'load_or_resume', '_maybe_compile'),
        'the same',
    ),
    'prepare': "the same of a FlexibleRunner's strategy",
    'full_init': "a data set's, while training starts: times it; keeps what it parses",
    'load_data_list': "the same data set's, while it initialises itself: its time",
    'filter_data': 'the same',
    '_serialize_data': 'the same',
    'open': "Python's and the io module's, likewise: the files that are read",
    'listdir': "the os module's, likewise: if folders are listed",
    'scandir': 'the same',
    'start': 'of threads and processes, likewise: if one is started',
    'get_data_info': "BaseDataset's, where samples are loaded: the file of a sample",
    'fetch': "a fetcher's in this process: times batches",
    '__call__': 'of transform classes, for one batch: times transforms',
    'get_file_backend': "MMEngine's, during a save: the backend that writes",
    'put': "a backend's, during a save: where writing begins and ends",
    'step': "an optimizer's, where asked: takes groups of equal settings as one",
    'update_parameters': "an averaged model's, where asked: averages by lists",
    'update_scalar': "the message hub's, where asked: its histories grow by doubling",
}
"""Owner of each attribute that may be replaced, and the purpose, by attribute name."""

_ABSENT = object()


class _Patch(NamedTuple):
    """Replaced attribute: its owner, its name and its previous value."""

    find_owner: Callable[[], Any]
    """Weak reference to the patched object; returns ``None`` once that is freed."""
    name: str
    ours: Any
    before: Any
    """Previous value of the attribute, or `_ABSENT` if it had none."""


class Patches:
    """Replaces attributes of objects, modules or classes, and restores them on `close`.

    What somebody else put in the place of ours is left alone when ours are taken back.
    """

    def __init__(self) -> None:
        self._set: list[_Patch] = []

    def set(self, owner: Any, name: str, ours: Any) -> None:
        """Replaces the attribute ``name`` of ``owner`` by ``ours`` until :meth:`close`.

        Args:
            owner: An object with attributes of its own; it is not kept alive.
            name: Of the attribute, out of :data:`REPLACED`.
            ours: What stands there from now on.

        Raises:
            TypeError: If the object takes no attributes.
            AttributeError: Likewise.
            KeyError: If the name is not in the table.
        """
        REPLACED[name]
        before = vars(owner).get(name, _ABSENT)
        # noted first: a signal handler may raise right after it is set
        self._set.append(_Patch(weakref.ref(owner), name, ours, before))
        try:
            _write(owner, name, ours)
        except BaseException:
            self._set.pop()
            raise

    def close(self) -> None:
        """Restores all replaced attributes, newest first; may be called twice."""
        while self._set:
            patch = self._set[-1]
            owner = patch.find_owner()
            if owner is not None and vars(owner).get(patch.name) is patch.ours:
                _write(owner, patch.name, patch.before)
            self._set.pop()


def _write(owner: Any, name: str, value: Any) -> None:
    names = vars(owner)
    if not isinstance(names, dict):  # a class's cannot be written to
        setattr(owner, name, value) if value is not _ABSENT else delattr(owner, name)
    elif value is _ABSENT:
        del names[name]
    else:
        # wrappers (DDP) would pass an attribute that is set on them on
        names[name] = value
