"""Config: nothing is wrong, as two persistent workers keep up with the train step."""

_base_ = './toy.py'
model = dict(step_ms=40)
