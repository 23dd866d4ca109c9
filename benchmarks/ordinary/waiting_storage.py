"""Config of a benchmark training with 30 ms of storage wait per image, 2 workers."""

_base_ = './toy.py'
train_dataloader = dict(dataset=dict(cpu_ms=0.5, wait_ms=30))
