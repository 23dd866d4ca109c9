"""Config: a log handler's lock is held while workers are forked."""

_base_ = './toy.py'
train_dataloader = dict(dataset=dict(length=160, logs_at=90))
