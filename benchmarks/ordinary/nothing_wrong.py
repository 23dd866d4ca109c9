"""Config: two persistent workers keep up with the step."""

_base_ = './toy.py'
model = dict(step_ms=40)
