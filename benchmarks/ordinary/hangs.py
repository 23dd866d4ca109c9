"""Config of a benchmark training that hangs: workers fork while a lock is held."""

_base_ = './toy.py'
train_dataloader = dict(dataset=dict(length=160, logs_at=90))
