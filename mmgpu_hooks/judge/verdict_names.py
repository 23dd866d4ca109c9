"""The closed list of verdicts, for code that names them without judging."""

from __future__ import annotations

VERDICTS: dict[str, str] = {
    'not_enough_evidence': 'Not enough evidence',
    'data_bound': 'Data-bound',
    'data_bound_workers': 'Data-bound, too few workers',
    'data_bound_cpu': 'Data-bound, the CPU is the wall',
    'data_bound_storage': 'Data-bound, loading is blocked',
    'affinity_collapsed': 'Data-bound, confined to a few CPUs',
    'thread_thrash': "Data-bound, the workers' threads take each other's cores",
    'memory_bound': 'Memory runs out',
    'quota_throttled': 'Held back by the CPU quota',
    'cpu_oversubscribed': 'CPU oversubscribed',
    'startup_bound': 'Bound by starts of the loader',
    'validation_bound': 'Bound by validation',
    'save_bound': 'Bound by checkpoint saves',
    'hook_bound': 'Bound by hooks',
    'compute_bound': 'Compute-bound',
}
"""Every verdict there is, and how it is called in text."""
