"""RTMDet-tiny on the demo's data set, with a loader that starves the training."""

_base_ = 'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py'

# The hook: one line. In `default_hooks` it joins the hooks of the base config.
default_hooks = dict(
    gpu_efficiency=dict(type='mmgpu_hooks.GPUEfficiencyHook'),
    logger=dict(interval=10),
    checkpoint=dict(interval=-1),
)

# The loader as it was left after debugging: the training loop itself loads every image.
train_dataloader = dict(
    batch_size=4,
    num_workers=1,
    persistent_workers=True,
    dataset=dict(
        data_root='data/demo/',
        ann_file='annotations.json',
        data_prefix=dict(img='images/'),
        metainfo=dict(classes=('rectangle', 'ellipse')),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True),
            dict(type='Resize', scale=(128, 128), keep_ratio=True),
            dict(type='RandomFlip', prob=0.5),
            dict(type='Pad', size=(128, 128), pad_val=dict(img=(114, 114, 114))),
            dict(type='PackDetInputs'),
        ],
    ),
)

# Nothing to download, two classes, a short run without validation.
model = dict(backbone=dict(init_cfg=None), bbox_head=dict(num_classes=2))
train_cfg = dict(max_epochs=3)
val_cfg = None
val_dataloader = None
val_evaluator = None
visualizer = dict(
    vis_backends=[dict(type='LocalVisBackend'), dict(type='TensorboardVisBackend')]
)
