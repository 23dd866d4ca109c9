train_dataloader = dict(batch_size=4, num_workers=0, dataset=dict(type='A'))
