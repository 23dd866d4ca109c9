"""Config of a benchmark training that restarts its workers in 16 short epochs."""

_base_ = './toy.py'
train_dataloader = dict(persistent_workers=False, dataset=dict(length=100))
train_cfg = dict(max_epochs=16)
