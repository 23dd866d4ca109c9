"""Config of a benchmark training with a slow CocoMetric after each short epoch."""

_base_ = './toy.py'
custom_imports = dict(imports=['benchmarks.whole_toys', 'mmdet.evaluation'])
model = dict(type='PlantedBoxes', boxes=100)
train_dataloader = dict(dataset=dict(length=240))
train_cfg = dict(max_epochs=3)
val_dataloader = dict(
    batch_size=10,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='PlantedImages', length=300, classes=80),
)
val_cfg = dict()
val_evaluator = dict(
    type='mmdet.CocoMetric', ann_file='data/metric.json', metric='bbox'
)
