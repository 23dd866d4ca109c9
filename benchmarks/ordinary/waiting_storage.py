"""Config: each image waits 30 ms for storage; two workers load them."""

_base_ = './toy.py'
train_dataloader = dict(dataset=dict(cpu_ms=0.5, wait_ms=30))
