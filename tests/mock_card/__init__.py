"""Trainings on simulated GPUs: NVIDIA's mock driver, and FakeGPU's torch."""
