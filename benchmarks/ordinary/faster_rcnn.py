"""Config of a benchmark training of Faster R-CNN, limited by the train step.

Few proposals and a narrow head, so that a step on one thread takes well below 1 s.
"""

_base_ = 'mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py'

default_hooks = dict(
    gpu_efficiency=dict(type='mmgpu_hooks.GPUEfficiencyHook'),
    logger=dict(interval=10),
    checkpoint=dict(interval=-1),
)
model = dict(
    backbone=dict(
        depth=18, init_cfg=None, frozen_stages=-1, norm_cfg=dict(requires_grad=False)
    ),
    neck=dict(in_channels=[64, 128, 256, 512]),
    roi_head=dict(bbox_head=dict(num_classes=2, fc_out_channels=64)),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=200, max_per_img=100),
        rcnn=dict(sampler=dict(num=64)),
    ),
)
train_dataloader = dict(
    batch_size=2,
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
            dict(type='PackDetInputs'),
        ],
    ),
)
train_cfg = dict(max_epochs=1)
# too high a rate for a detector that starts from nothing
optim_wrapper = dict(optimizer=dict(lr=0.001))
val_cfg = None
val_dataloader = None
val_evaluator = None
