"""Config: each image waits 30 ms for storage, and two workers load images."""

_base_ = './toy.py'
train_dataloader = dict(dataset=dict(cpu_ms=0.5, wait_ms=30))
