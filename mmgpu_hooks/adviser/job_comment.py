"""Writes a run's verdict into the SLURM job's comment (shown by ``squeue -o %k``)."""

from __future__ import annotations

import subprocess

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.schema.recorded import VerdictRecord
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.comment import COMMENT_START, phrase_comment

_LIMIT_S = 5.0
"""Time limit in seconds for all calls of SLURM's commands that set the comment."""

_NO_COMMENT = ('', '(null)')


def comment_on_job(verdict: VerdictRecord, limit_s: float = _LIMIT_S) -> bool:
    """Writes a verdict into the SLURM job's comment; returns True if that worked.

    A comment of the user's own stays: sites bill by comments. One that begins as ours
    is from this job's earlier verdicts. SLURM takes none once the job has ended.

    Args:
        verdict: Names the job.
        limit_s: Seconds for all that SLURM is asked.

    Returns:
        True if it was written; False outside of a job, where there is nothing to say,
        and beside a comment of the user's.

    Raises:
        SourceError: If SLURM refuses, does not answer in time, or its commands are not
            installed here.
    """
    text, job = phrase_comment(verdict), verdict.slurm_job_id
    if job is None or text is None:
        return False
    until_s = monotonic_s() + limit_s
    found = _ask_slurm(until_s, 'squeue', '-h', '-j', str(job), '-o', '%k').strip()
    if found not in _NO_COMMENT and not found.startswith(COMMENT_START):
        return False
    _ask_slurm(until_s, 'scontrol', 'update', f'jobid={job}', f'comment={text}')
    return True


def _ask_slurm(until_s: float, *words: str) -> str:
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors='replace',
            timeout=max(until_s - monotonic_s(), 0.1),
            check=False,
        )
    except FileNotFoundError:
        raise SourceError(
            phrase(
                'expected {program} of SLURM, found none; install it where the job '
                'runs',
                program=words[0],
            )
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        said = getattr(error, 'strerror', None) or phrase('no answer in time')
        raise SourceError(
            phrase('{program}: {error}', program=words[0], error=said)
        ) from error
    if done.returncode:
        said = ' '.join(done.stderr.split()) or phrase(
            'exit code {code}', code=done.returncode
        )
        raise SourceError(phrase('{program}: {error}', program=words[0], error=said))
    return done.stdout
