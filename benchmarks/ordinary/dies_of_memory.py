"""Config of a benchmark training that runs out of memory: leaks in all processes."""

_base_ = './toy.py'
model = dict(step_ms=20, grows_from=600, grows_until=640)
train_dataloader = dict(
    batch_size=2,
    num_workers=5,
    dataset=dict(length=800, cpu_ms=0, cache_mib=160),
)
