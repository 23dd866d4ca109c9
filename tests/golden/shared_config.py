model = dict(type='ToyModel')
default_hooks = dict(
    gpu_efficiency=dict(type='mmgpu_hooks.GPUEfficiencyHook'),
)
train_dataloader = dict(
    batch_size=4,
    num_workers=2,  # as it was
    persistent_workers=False,
    dataset=dict(type='ToyDataset'),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=1,
    persistent_workers=True,
    dataset=dict(type='ToyDataset'),
)
