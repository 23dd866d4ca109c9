"""Names and titles of all verdicts on a training run."""

from __future__ import annotations

from mmgpu_hooks.schema.text import Text, phrase

VERDICTS: dict[str, Text] = {
    'not_enough_evidence': phrase('Not enough evidence'),
    'data_bound': phrase('Data-bound'),
    'data_bound_workers': phrase('Data-bound, too few workers'),
    'data_bound_cpu': phrase('Data-bound, the CPU is the wall'),
    'data_bound_storage': phrase('Data-bound, loading is blocked'),
    'affinity_collapsed': phrase('Data-bound, confined to a few CPUs'),
    'thread_thrash': phrase("Data-bound, the workers' threads take each other's cores"),
    'memory_bound': phrase('Memory runs out'),
    'quota_throttled': phrase('Held back by the CPU quota'),
    'cpu_oversubscribed': phrase('CPU oversubscribed'),
    'start_bound': phrase('Bound by its start'),
    'startup_bound': phrase('Bound by starts of the loader'),
    'validation_bound': phrase('Bound by validation'),
    'save_bound': phrase('Bound by checkpoint saves'),
    'hook_bound': phrase('Bound by hooks'),
    'compute_bound': phrase('Compute-bound'),
}
"""Titles of all verdicts on a training run, by name of the verdict."""
