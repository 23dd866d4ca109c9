"""Config of a benchmark training that parses annotations for 15 s at its start."""

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
