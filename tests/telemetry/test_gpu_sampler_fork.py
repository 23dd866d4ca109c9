from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from fakes.nvml import FakeNvml

FORKING = """
    import os, threading
    import torch
    from torch.utils.data import DataLoader, Dataset
    from mmgpu_hooks.telemetry.gpu_sampler import THREAD_NAME, GpuSampler
    from mmgpu_hooks.telemetry.nvml import open_gpu

    gpu = open_gpu(index=0)
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
            assert sampler.drain().samples == 0
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
    assert sampler.drain().samples > 10
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
    done = subprocess.run(
        [sys.executable, '-c', textwrap.dedent(FORKING).replace('{end}', end)],
        env=fake_nvml.environ(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, 'trained\n', '')
