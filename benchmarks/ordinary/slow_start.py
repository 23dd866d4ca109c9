"""Annotations take 15 s to parse, and a short training begins with them each time."""

_base_ = './toy.py'
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='PlantedAnnotations',
        length=400,
        parse_s=15,
        ann_file='benchmarks/ordinary/toy.py',
    )
)
