"""Config: the workers are started anew in each of sixteen short epochs."""

_base_ = './toy.py'
train_dataloader = dict(persistent_workers=False, dataset=dict(length=100))
train_cfg = dict(max_epochs=16)
