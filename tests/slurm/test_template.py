"""Tests ``configs/slurm/train.sbatch`` by submitting it as documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.toy import evidence_of
from training.trial_toys import write_config

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / 'configs' / 'slurm' / 'train.sbatch'

TRAIN = """\
import sys
from training.bound import main
main(sys.argv[1], 'run')
"""
MORE = """
val_cfg = val_dataloader = val_evaluator = None
visualizer = dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')])
"""


@pytest.mark.parametrize('language', ['en', 'zh_cn'])
def test_its_page_has_all_of_the_template(language):
    page = (ROOT / 'docs' / language / 'cluster.md').read_text(encoding='utf-8')
    assert f'```bash\n{TEMPLATE.read_text()}```\n' in page


@pytest.mark.slow
@pytest.mark.slurm
def test_the_template_trains_with_the_hook_on_all_its_cores(cluster, tmp_path, ask):
    # as in a clone of MMDetection
    (tmp_path / 'tools').mkdir()
    (tmp_path / 'tools' / 'train.py').write_text(TRAIN)
    write_config(tmp_path, num_workers=1, length=80, epochs=1, more=MORE)
    # this machine has fewer CPUs than the template asks for; the hint is the trap
    options = ('-c2', '--hint=nomultithread', f'--chdir={tmp_path}')
    job = cluster.run('sbatch', '--parsable', *options, TEMPLATE, 'toy.py')
    state = cluster.wait_for(job, 'COMPLETED', 'FAILED', limit_s=120)
    out = (tmp_path / f'slurm-{job}.out').read_text()
    assert state == 'COMPLETED', out
    assert 'switched on by mmgpu run' in out
    run = evidence_of(tmp_path / 'run').run
    assert (run.hook_added_by, run.host.usable_cores) == ('mmgpu run', 2.0)
    assert ask('recommend', tmp_path / 'run', '--dry-run')['status'] == 'completed'


@pytest.mark.slurm
def test_without_a_config_it_says_what_it_expects(cluster, tmp_path):
    where = (f'--chdir={tmp_path}', '-c1')
    job = cluster.run('sbatch', '--parsable', *where, TEMPLATE)
    assert cluster.wait_for(job, 'COMPLETED', 'FAILED') == 'FAILED'
    out = (tmp_path / f'slurm-{job}.out').read_text()
    assert 'expected a config: sbatch train.sbatch CONFIG' in out
