"""Tests reading when SLURM ends a job, from its environment and commands."""

from __future__ import annotations

import time

import pytest

from mmgpu_hooks.measure.job_end import ask_end_unix_s, parse_end_unix_s

SOON, IN_A_YEAR = int(time.time()) + 3600, int(time.time()) + 365 * 86_400


@pytest.mark.parametrize(
    ('text', 'end_s'),
    [
        (f'{SOON}\n', SOON),
        (str(IN_A_YEAR), None),
        ('NONE', None),
        ('N/A', None),
        ('', None),
        ('2026-11-23T20:33:08', None),
    ],
    # each process that collects tests has a second of its own
    ids=['soon', 'in a year', 'NONE', 'N/A', 'empty', 'a date'],
)
def test_only_a_time_that_is_near_is_an_end(text, end_s):
    assert parse_end_unix_s(text) == end_s


@pytest.mark.parametrize(
    ('script', 'end_s'),
    [
        (f'[ "$SLURM_TIME_FORMAT $*" = "%s -h -j 7 -o %e" ] && echo {SOON}', SOON),
        ('echo slurm_load_jobs error: Invalid job id specified >&2; exit 1', None),
        (None, None),
    ],
    ids=['known', 'unknown job', 'no SLURM'],
)
def test_the_controller_is_asked(tmp_path, monkeypatch, script, end_s):
    monkeypatch.setenv('PATH', f'{tmp_path}:/bin:/usr/bin' if script else str(tmp_path))
    if script is not None:
        command = tmp_path / 'squeue'
        command.write_text(f'#!/bin/sh\n{script}\n')
        command.chmod(0o755)
    assert ask_end_unix_s(7) == end_s
