"""Config: hangs, as workers are forked while a log handler's lock is held."""

_base_ = './toy.py'
train_dataloader = dict(dataset=dict(length=160, logs_at=90))
