"""Config of a benchmark training whose validation loads images without workers."""

_base_ = './toy.py'
model = dict(predict_ms=15)
train_dataloader = dict(dataset=dict(length=160))
train_cfg = dict(max_epochs=5)
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='PlantedImages', length=80, cpu_ms=20, wait_ms=10),
)
val_cfg = dict()
val_evaluator = dict(type='CountImages')
