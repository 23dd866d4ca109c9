"""Packaging of mmgpu_hooks.

Neither MMEngine, MMDetection nor PyTorch is named in `install_requires`: maintained
forks install the same import packages, and pip would lay the upstream files over them.
They are listed in `requirements/mminstall.txt`, as in OpenMMLab's own projects.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent


def read_text(name: str) -> str:
    """Return the text of a file beside this one, '' when it is absent."""
    path = HERE / name
    return path.read_text(encoding='utf-8') if path.exists() else ''


def parse_version(text: str) -> str:
    """Return the version assigned in the text of `version.py`."""
    match = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    if match is None:
        raise RuntimeError("mmgpu_hooks/version.py: no line `__version__ = '...'`")
    return match.group(1)


setup(
    name='mmgpu_hooks',
    version=parse_version(read_text('mmgpu_hooks/version.py')),
    description='Says what an MMDetection training waits for, and sets its data loader',
    long_description=read_text('README.md'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    keywords='mmengine mmdetection gpu utilization dataloader num_workers',
    packages=find_packages(include=['mmgpu_hooks', 'mmgpu_hooks.*']),
    package_data={
        # no package: its folder goes on the PYTHONPATH of trainings
        'mmgpu_hooks': ['py.typed', 'injected/sitecustomize.py'],
        'mmgpu_hooks.show': ['page.html', 'page.css'],
    },
    python_requires='>=3.9',
    install_requires=[
        'nvidia-ml-py>=12.535',
        'psutil>=5.9',
        'msgspec>=0.18',
        'numpy>=1.22',
        'click>=8.1',
        'rich>=13',
        'jinja2>=3',
        'scipy>=1.7',
        'packaging>=21',
    ],
    extras_require={'plots': ['matplotlib>=3.5']},
    entry_points={'console_scripts': ['mmgpu = mmgpu_hooks.__main__:main']},
    classifiers=[
        'Development Status :: 4 - Beta',
        'Environment :: Console',
        'Environment :: GPU :: NVIDIA CUDA',
        'Intended Audience :: Developers',
        'Intended Audience :: Science/Research',
        'License :: OSI Approved :: Apache Software License',
        'Operating System :: POSIX :: Linux',
        'Programming Language :: Python :: 3',
        'Programming Language :: Python :: 3.9',
        'Programming Language :: Python :: 3.10',
        'Programming Language :: Python :: 3.11',
        'Programming Language :: Python :: 3.12',
        'Programming Language :: Python :: 3.13',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
        'Topic :: System :: Monitoring',
        'Typing :: Typed',
    ],
    zip_safe=False,
)
