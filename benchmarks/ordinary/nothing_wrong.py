"""Two workers keep up with the step, and live on."""

_base_ = './toy.py'
model = dict(step_ms=40)
