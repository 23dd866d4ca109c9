from __future__ import annotations

import subprocess
import sys
from unittest.mock import Mock

import psutil
import pytest

from mmgpu_hooks.measure.host import CpuBinding, find_binding, read_binding

BIND = {'OMP_PROC_BIND': 'true'}
OFF = {'OMP_PROC_BIND': 'FALSE', 'OMP_PLACES': 'cores'}
NOT_KMP = {'KMP_AFFINITY': 'none'}
WIDER = CpuBinding(wider_thread_cpus=4)
ELASTIC = {**BIND, 'TORCHELASTIC_RUN_ID': 'none'}


@pytest.mark.parametrize(
    ('environ', 'library', 'thread', 'ancestor', 'found'),
    [
        (BIND, 8, 1, 8, CpuBinding(8, 'OMP_PROC_BIND')),
        (
            {**BIND, 'OMP_PLACES': 'cores'},
            8,
            1,
            8,
            CpuBinding(8, 'OMP_PROC_BIND, OMP_PLACES'),
        ),
        ({'GOMP_CPU_AFFINITY': '0'}, 8, None, None, CpuBinding(8, 'GOMP_CPU_AFFINITY')),
        ({'KMP_AFFINITY': 'compact'}, None, 4, None, CpuBinding(4, 'KMP_AFFINITY')),
        # a variable alone, or a wider parent, proves nothing: taskset has both
        (BIND, 1, 1, 8, None),
        ({}, None, 1, 8, None),
        ({}, 8, 1, 8, None),
        ({'OMP_PROC_BIND': ''}, 8, 1, 8, None),
        (OFF, 8, 1, 8, None),
        ({'KMP_AFFINITY': 'verbose,disabled'}, 1, 4, None, WIDER),
        ({**NOT_KMP, 'TORCHELASTIC_RUN_ID': 'none'}, 1, 1, 8, None),
        # nothing explains it: another thread may have widened itself
        ({}, None, 4, 8, WIDER),
        ({}, 1, 4, 8, WIDER),
        (OFF, 1, 4, 8, WIDER),
        (BIND, 1, 4, 8, WIDER),
        # torchrun bound itself
        (ELASTIC, 1, 1, 8, CpuBinding(8, 'OMP_PROC_BIND')),
        (ELASTIC, 1, 1, None, None),
        ({'TORCHELASTIC_RUN_ID': 'none'}, 1, 1, 8, None),
        (ELASTIC, None, None, None, None),
    ],
)
def test_the_variable_that_bound_a_process_is_named(
    environ, library, thread, ancestor, found
):
    binding = find_binding(1, environ, library, thread, ancestor)
    assert binding == (found or CpuBinding())


def test_no_runtime_is_loaded_to_ask_it():
    code = """if True:
        from mmgpu_hooks.measure.host import CpuBinding, read_binding
        print(read_binding(1 << 20, {'OMP_PROC_BIND': 'true'}) == CpuBinding())
        print('libgomp' in open('/proc/self/maps').read())
    """
    command = [sys.executable, '-c', code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ['True', 'False'], done.stderr


def test_without_proc_or_with_hidden_processes_the_binding_is_unknown(
    tmp_path, monkeypatch
):
    assert read_binding(1, BIND, tmp_path) == CpuBinding()
    hidden = Mock(side_effect=psutil.AccessDenied(1))
    monkeypatch.setattr(psutil.Process, 'parents', hidden)
    assert read_binding(1, BIND, tmp_path) == CpuBinding()
