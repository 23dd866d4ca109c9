"""Setuptools configuration of the package ``mmgpu_hooks``.

Neither MMEngine, MMDetection nor PyTorch is named in `install_requires`: maintained
forks install the same import packages, and pip would lay the upstream files over them.
They are listed in `requirements/mminstall.txt`, as in OpenMMLab's own projects.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent
ADDRESS = ''
"""Public URL of the repository without trailing slash; '' while it has none.

Project links, and the readme's links and pictures on an index, are made of it.
"""


def read_text(name: str) -> str:
    """Returns the text of a file in this folder; '' if there is no such file."""
    path = HERE / name
    return path.read_text(encoding='utf-8') if path.exists() else ''


def parse_version(text: str) -> str:
    """Returns the version number assigned in the text of ``version.py``."""
    match = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    if match is None:
        raise RuntimeError("mmgpu_hooks/version.py: no line `__version__ = '...'`")
    return match.group(1)


def render_readme(text: str, address: str, version: str) -> str:
    """Returns the README for PyPI, with absolute links in place of relative ones.

    Args:
        text: Markdown whose links are relative to the repository.
        address: Public address of the repository, or ''.
        version: Links lead to the tag of this release.

    Returns:
        The text with absolute links. Without an address, files are named in place of
        links, and a picture is left out, with the line that introduces it.
    """
    link, end = r'\[([^\]]*)\]', r'\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)'
    if address:
        raw, page = (f'{address}/{kind}/v{version}' for kind in ('raw', 'blob'))
        text = re.sub(f'!{link}{end}', rf'![\1]({raw}/\2)', text)
        return re.sub(link + end, rf'[\1]({page}/\2\3)', text)
    text = re.sub(rf'(\n+[^\n]+:)?\n\n!{link}{end}', '', text)
    text = re.sub(rf'\({link}{end}\)', r'(\1: `\2`)', text)
    return re.sub(link + end, r'\1 (`\2`)', text)


def list_project_urls(address: str, version: str) -> dict[str, str]:
    """Returns the project links that PyPI shows, by title."""
    if not address:
        return {}
    return {
        'Source': address,
        'Documentation': f'{address}/tree/v{version}/docs/en',
        'Changelog': f'{address}/blob/v{version}/CHANGELOG.md',
        'Issues': f'{address}/issues',
    }


VERSION = parse_version(read_text('mmgpu_hooks/version.py'))

setup(
    name='mmgpu_hooks',
    version=VERSION,
    description='Says what an MMDetection training waits for, and sets its data loader',
    long_description=render_readme(read_text('README.md'), ADDRESS, VERSION),
    long_description_content_type='text/markdown',
    license_expression='Apache-2.0',
    license_files=['LICENSE'],
    project_urls=list_project_urls(ADDRESS, VERSION),
    keywords='mmengine mmdetection gpu utilization dataloader num_workers',
    packages=find_packages(include=['mmgpu_hooks', 'mmgpu_hooks.*']),
    package_data={
        # no package: its folder goes on the PYTHONPATH of trainings
        'mmgpu_hooks': [
            'py.typed',
            'injected/sitecustomize.py',
            # catalogs of languages
            'locale/*/LC_MESSAGES/*.mo',
            'locale/*/LC_MESSAGES/*.po',
        ],
        'mmgpu_hooks.show': ['page.html', 'page.css', 'sort.js'],
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
    extras_require={
        'plots': ['matplotlib>=3.5'],
        'dask': ['distributed>=2023.5'],
        'metric': ['ultrafast-pycocotools>=0.1.14'],
    },
    entry_points={'console_scripts': ['mmgpu = mmgpu_hooks.__main__:main']},
    classifiers=[
        'Development Status :: 4 - Beta',
        'Environment :: Console',
        'Environment :: GPU :: NVIDIA CUDA',
        'Intended Audience :: Developers',
        'Intended Audience :: Science/Research',
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
