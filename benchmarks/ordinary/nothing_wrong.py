"""Config of a benchmark training without a fault: workers keep up with the step."""

_base_ = './toy.py'
model = dict(step_ms=40)
