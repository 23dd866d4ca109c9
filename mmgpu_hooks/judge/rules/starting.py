"""Rules about the time before a training's first new iteration."""

from __future__ import annotations

from collections.abc import Iterable

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.rules.rule import REGISTERED, notice, problem, rule
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.judged import Finding
from mmgpu_hooks.schema.recorded import DatasetStart
from mmgpu_hooks.schema.text import Text, phrase


@rule('MG701', 'Resuming loads what it skips', 'start_bound')
def judge_resume(run: Run) -> Finding | None:
    """A resumed iteration-based training loads all batches it had trained on again.

    MMEngine takes every batch from the loader and throws it away, so that the batches
    that follow are those of a training that was never interrupted.
    ``GPUEfficiencyHook(optimize='resume')`` lets the sampler alone go on: the same
    batches follow, and their random augmentation is another one.
    """
    seconds = run.figures.ledger_s.get('resume', 0.0)
    share = run.figures.part_share('resume')
    is_little = share < thresholds.START_SHARE or seconds < thresholds.START_LEAST_S
    if is_little or 'resume' in run.meta.optimized:
        return None
    detail = phrase(
        'Resuming loaded {start_batches} only to skip them, in {spent_s:sum} '
        "({run_pct:exact} of the run); optimize='resume' skips them without loading.",
        start_batches=run.meta.start_iteration,
        spent_s=seconds,
        run_pct=100 * share,
    )
    return _weigh(run, detail, seconds)


@rule('MG702', 'Annotations are parsed at each start', 'start_bound')
def judge_parsing(run: Run) -> Finding | None:
    """Every rank reads and parses the same annotations, at every start.

    ``GPUEfficiencyHook(optimize='annotations')`` keeps what was parsed in a folder of
    yours and maps it at the next start: in milliseconds, and one copy for all ranks and
    workers of a host.
    """
    parsed = _list_parsed(run)
    seconds = sum(start.wall_s for start in parsed)
    if not _is_worth(run, seconds):
        return None
    longest = max(parsed, key=lambda start: start.wall_s)
    cure = phrase("optimize='annotations' maps what was parsed once")
    if longest.refused is not None:
        cure = phrase(
            "optimize='annotations' kept nothing of it, since {refused}", longest
        )
    facts = {
        'parsing_s': seconds,
        'data_set': _name(longest),
        'longest_s': longest.wall_s,
        'cure': cure,
    }
    detail = phrase(
        'Parsing annotations took {parsing_s:sum} ({data_set}: {longest_s:sum}), as it '
        'will at each start; {cure}.',
        **facts,
    )
    if run.meta.world_size > 1:
        detail = phrase(
            'Parsing annotations took {parsing_s:sum} on each of {world_ranks} '
            '({data_set}: {longest_s:sum}), as it will at each start; {cure}.',
            world_ranks=run.meta.world_size,
            **facts,
        )
    return _weigh(run, detail, seconds)


@rule('MG703', 'A file for each image is read at the start', 'start_bound')
def judge_many_files(run: Run) -> Finding | None:
    """A data set opens one annotation file per image before training starts.

    Each takes a look-up and a read, on a network one after the other. One file for all
    of them (MMDetection has converters to COCO's format, ``tools/dataset_converters``)
    is read at once; ``optimize='annotations'`` keeps what was parsed.
    """
    many = [start for start in _list_parsed(run) if _has_many_files(start)]
    seconds = sum(start.read_s for start in many)
    if not many or not _is_worth(run, seconds):
        return None
    detail = phrase(
        '{annotation_files:d} annotation files were read one by one in {read_s:sum} '
        '({data_set}); one file for all is read at once, and '
        "optimize='annotations' keeps what was parsed.",
        annotation_files=sum(start.files for start in many),
        read_s=seconds,
        data_set=_name(many[0]),
    )
    return _weigh(run, detail, seconds)


@rule('MG704', 'Annotations lie on slow storage', 'start_bound')
def judge_slow_mount(run: Run) -> Finding | None:
    """Reading annotations mostly waited, without CPU use: slow storage or network.

    A copy on a local disk is read at its speed. Many small files suffer most.
    """
    parsed = _list_parsed(run)
    blocked_s = sum(max(start.read_s - start.read_cpu_s, 0.0) for start in parsed)
    whole_s = sum(start.read_s for start in parsed)
    is_blocked = blocked_s >= thresholds.BLOCKED_PROBLEM * whole_s
    if not is_blocked or not _is_worth(run, blocked_s):
        return None
    slowest = max(parsed, key=lambda start: start.read_s - start.read_cpu_s)
    read = _name(slowest)
    if slowest.mount is not None:
        read = phrase('{data_set} on {mount}', slowest, data_set=read)
    detail = phrase(
        'Reading {read} waited {blocked_s:sum} of {read_s:sum} for storage; a copy on '
        'a local disk is read faster.',
        read=read,
        blocked_s=blocked_s,
        read_s=whole_s,
    )
    return _weigh(run, detail, blocked_s)


@rule('MG705', 'The checkpoint loads slowly', 'start_bound')
def judge_loading(run: Run) -> Finding | None:
    """Loading a checkpoint, to start from or to resume a training, takes long.

    A download, or storage that is far away, is paid for at each start and on each rank:
    a copy on a local disk is not. Where only the weights are wanted,
    ``tools/model_converters/publish_model.py`` leaves the optimizer's state out.
    """
    start = run.evidence.start
    seconds = 0.0 if start is None else start.parts_s.get('load', 0.0)
    if start is None or not _is_worth(run, seconds):
        return None
    loaded: str = start.checkpoint or phrase('the checkpoint')
    if start.checkpoint_bytes is not None:
        loaded = phrase('{checkpoint} ({checkpoint_bytes})', start, checkpoint=loaded)
    detail = phrase(
        'Loading {checkpoint} took {load_s:sum}; a copy on a local disk, or one '
        'without the state of the optimizer, loads faster.',
        checkpoint=loaded,
        load_s=seconds,
    )
    return _weigh(run, detail, seconds)


@rule('MG706', 'The optimizer logs a line for each parameter', 'start_bound')
def judge_parameter_lines(run: Run) -> Finding | None:
    """With ``paramwise_cfg`` MMEngine logs the options of each parameter.

    Thousands of lines take seconds, more where the log is on a network. Set
    ``log_level='WARNING'`` while nobody reads them, or name fewer parameters in
    ``paramwise_cfg``.
    """
    start = run.evidence.start
    seconds = 0.0 if start is None else start.parts_s.get('optimizer', 0.0)
    if start is None or not start.parameter_lines or not _is_worth(run, seconds):
        return None
    detail = phrase(
        'Building the optimizer took {optimizer_s:sum}, with {parameter_lines} of '
        "paramwise_options in the log; log_level='WARNING' leaves them out.",
        start,
        optimizer_s=seconds,
    )
    return _weigh(run, detail, seconds)


def list_start_findings(run: Run) -> list[Finding]:
    """Lists the findings on the start of a run, the largest share of time first."""
    codes = ('MG701', 'MG702', 'MG703', 'MG704', 'MG705', 'MG706')
    found = (REGISTERED[code].apply(run) for code in codes)
    findings = [finding for finding in found if finding is not None]
    return sorted(findings, key=lambda finding: -(finding.share or 0.0))


def _is_worth(run: Run, seconds: float) -> bool:
    """True if the seconds of a part of training's start are worth a finding."""
    if seconds < thresholds.START_LEAST_S:
        return False
    is_much = seconds >= thresholds.START_SHARE * run.whole_s
    return is_much or seconds >= thresholds.START_LONG_S


def _weigh(run: Run, detail: Text, seconds: float) -> Finding:
    """Makes a finding on a slow start: a problem if it took a tenth of a finished run.

    A run that was ended early would have had a smaller share of it.
    """
    share, end = run.figures.run_share(seconds), run.end
    is_whole = end is not None and end.status == 'completed'
    if is_whole and seconds >= thresholds.VERDICT_SHARE * run.whole_s:
        return problem(detail, share)
    return notice(detail, share)


def _list_parsed(run: Run) -> list[DatasetStart]:
    """Lists the data sets whose annotations will be parsed again at the next start."""
    start = run.evidence.start
    found: Iterable[DatasetStart] = () if start is None else start.data_sets
    return [each for each in found if not (each.is_cached or each.is_kept)]


def _has_many_files(start: DatasetStart) -> bool:
    return start.files >= thresholds.MANY_FILES


def _name(start: DatasetStart) -> str:
    return f'{start.kind} {start.file}' if start.file else start.kind
