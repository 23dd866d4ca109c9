"""Config of a benchmark training by iterations, with ``num_workers=0``."""

_base_ = './toy.py'
train_dataloader = dict(
    num_workers=0,
    persistent_workers=False,
    sampler=dict(_delete_=True, type='InfiniteSampler', shuffle=True),
    dataset=dict(cpu_ms=5),
)
train_cfg = dict(_delete_=True, by_epoch=False, max_iters=400)
log_processor = dict(by_epoch=False)
