"""Trainings on a card that others wrote: NVIDIA's mock driver, and FakeGPU's torch."""
