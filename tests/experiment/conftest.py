from __future__ import annotations

from fakes.nvml.fixtures import fake_nvml, fake_nvml_library
from fakes.trials import scripted

__all__ = ['fake_nvml', 'fake_nvml_library', 'scripted']
