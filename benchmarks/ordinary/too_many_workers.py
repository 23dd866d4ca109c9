"""Config of a benchmark training with 16 workers on 2 cores, in 6 short epochs."""

_base_ = './toy.py'
model = dict(step_ms=20, megabytes=60)
train_dataloader = dict(
    num_workers=16,
    persistent_workers=False,
    dataset=dict(length=240, cpu_ms=6),
)
train_cfg = dict(max_epochs=6)
default_hooks = dict(
    checkpoint=dict(by_epoch=False, interval=20, max_keep_ckpts=1),
)
