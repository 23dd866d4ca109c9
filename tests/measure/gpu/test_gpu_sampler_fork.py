from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from fakes.nvml import FakeGpu, FakeNvml

BUSY = FakeGpu(
    more=[
        'clocks 1980 2619',
        'temperature 61',
        'reasons 0x4',
        'gpm 1',
    ]
)
SECOND = FakeGpu(uuid='GPU-2', bus='00000000:AF:00.0')

FORKING = """
    import os, threading
    import torch
    from torch.utils.data import DataLoader, Dataset
    from mmgpu_hooks.measure import gpu as nvml_gpu
    from mmgpu_hooks.measure.gpu import THREAD_NAME, GpuSampler, open_gpu

    # all at every sample
    for pace in ('VITALS_S', 'GPM_S'):
        assert getattr(nvml_gpu, pace) > 0.0
        setattr(nvml_gpu, pace, 0.0)
    gpu = open_gpu(uuid='{uuid}')
    sampler = GpuSampler(gpu.read_sample, period_s=0.0005)
    parent = os.getpid()

    class Images(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            assert os.getpid() != parent
            names = [t.name for t in threading.enumerate()]
            assert THREAD_NAME not in names, names
            sampler.start()
            assert sampler.drain()['samples'] == 0
            assert sampler.stop()
            gpu.close()
            assert [t.name for t in threading.enumerate()] == names
            return torch.zeros(4)

    sampler.start()
    for epoch in range(8):
        loader = DataLoader(
            Images(), num_workers=2, batch_size=2, multiprocessing_context='fork'
        )
        assert sum(len(batch) for batch in loader) == 8
    assert sampler.failure is None, sampler.failure
    window = sampler.drain()
    assert window['samples'] > 5, window
    assert window['sm_active_pct'] == 1.0
    print('trained')
    {end}
"""


@pytest.mark.skipif(sys.platform == 'win32', reason='needs fork')
@pytest.mark.parametrize(
    ('end', 'status'),
    [
        pytest.param('sampler.stop(); gpu.close()', 0, id='stopped'),
        pytest.param('raise SystemExit(3)', 3, id='forgotten'),
    ],
)
def test_loader_workers_fork_while_the_thread_samples(
    fake_nvml: FakeNvml, end: str, status: int
):
    pytest.importorskip('torch', exc_type=ImportError)
    fake_nvml.set(BUSY, SECOND)
    program = FORKING.replace('{end}', end).replace('{uuid}', BUSY.uuid)
    done = subprocess.run(
        [sys.executable, '-c', textwrap.dedent(program)],
        env=fake_nvml.environ(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, 'trained\n', '')
