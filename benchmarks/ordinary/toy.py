"""Base config of the benchmark trainings in this folder."""

custom_imports = dict(imports=['benchmarks.whole_toys'])
default_hooks = dict(
    gpu_efficiency=dict(type='mmgpu_hooks.GPUEfficiencyHook'),
    logger=dict(type='LoggerHook', interval=10),
    checkpoint=dict(type='CheckpointHook', interval=-1, save_last=False),
)
model = dict(type='PlantedDetector', step_ms=25)
train_dataloader = dict(
    batch_size=4,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(type='PlantedImages', length=400, cpu_ms=2),
)
train_cfg = dict(by_epoch=True, max_epochs=2)
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.01))
randomness = dict(seed=0)
