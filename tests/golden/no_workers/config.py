# my experiment
from_scratch = False
train_dataloader = dict(
    batch_size=4,
    num_workers=0,  # debugging
    persistent_workers=False,
    dataset=dict(type='ToyDataset'),
)
