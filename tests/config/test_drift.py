from __future__ import annotations

from mmgpu_hooks.config.loading import read_drift

CONFIG = """\
model = dict(type='A', backbone=dict(depth=18))
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.02))
train_dataloader = dict(
    batch_size=4,
    num_workers=2,
    persistent_workers=True,
    dataset=dict(pipeline=[dict(type='Load'), dict(type='Resize', scale=(8, 8))]),
)
train_cfg = dict(max_epochs=12)
custom_hooks = [dict(type='EMAHook'), dict(type='GPUEfficiencyHook', interval=10)]
auto_scale_lr = dict(base_batch_size=16, enable=False)
work_dir = 'a'
"""


def test_a_config_that_changed_since_the_run_is_noticed(tmp_path):
    config, copy = tmp_path / 'config.py', tmp_path / 'copy.py'
    config.write_text(CONFIG)
    copy.write_text(CONFIG.replace('batch_size=4', 'batch_size=8, pin_memory=True'))
    said = read_drift(config, copy)
    assert 'train_dataloader.batch_size 8 -> 4' in said
    assert 'train_dataloader.pin_memory True -> None' in said
    # a dump spells tuples in its own way
    copy.write_text(CONFIG.replace('(8, 8)', '[8, 8]'))
    assert read_drift(config, copy) is None
    copy.write_text('1 / 0\n')
    assert read_drift(config, copy) is None
