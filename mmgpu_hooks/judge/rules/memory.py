"""Rules about memory: of the host, of ``/dev/shm``, of the GPU."""

from __future__ import annotations

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.columns import largest, median
from mmgpu_hooks.judge.memory import (
    are_files_few,
    count_ahead,
    count_left,
    find_card_room,
    find_growth_of,
    find_host_growth,
    find_host_room,
    is_shm_small,
)
from mmgpu_hooks.judge.rules.rule import cannot_tell, notice, problem, rule, weigh
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.stats import count_missing_readings
from mmgpu_hooks.schema.judged import Estimate, Finding
from mmgpu_hooks.schema.text import Text, phrase, sentences

_FATAL = 1.0
"""Share of a run's time counted as lost if the run ends too early: 1, all of it."""


@rule('MG401', 'Memory of the host grows', 'memory_bound')
def judge_host_growth(run: Run) -> Finding | None:
    """The training process, or its workers, take more memory with every iteration.

    Only growth after the first third of the run counts, and only if it is even and
    without a break. So caches that fill and pools that reach their largest size are not
    reported. Nor are pages of files, such as a memory-mapped dataset's, nor what
    workers take until each has sent 256 tensors: PyTorch reuses that memory late.
    Within the first two epochs it may be a cache that is full once every sample was
    seen: a notice. In the training process, look for lists that are appended to: losses
    kept with their graph, results in a metric or a hook. In workers, for caches in the
    dataset or a transform; ``persistent_workers=False`` gives their memory back after
    each epoch.
    """
    growth = find_host_growth(run)
    if growth is None:
        return _judge_short_growth(run)
    process = workers = None
    if growth.process:
        process = phrase(
            'The training process grows by {rise_bytes} per 1000 iterations '
            '({low_bytes} to {high_bytes}, {readings}).',
            **_list_growth(growth.process),
        )
    if growth.workers:
        workers = phrase(
            'Workers grow by {rise_bytes} per 1000 iterations ({low_bytes} to '
            '{high_bytes}, {readings}).',
            **_list_growth(growth.workers),
        )
    grows = sentences(process, workers)
    room, count, ranks = growth.room, growth.full_in, run.meta.host.ranks
    if room is None or count is None:
        return notice(sentences(grows, phrase('How much is free is unknown.')))
    batches = run.meta.loader.batches_per_epoch
    ends = count_left(run) if growth.is_lasting else batches
    free = sentences(
        phrase(
            '{free_bytes} are free {bound}.',
            free_bytes=room.free_bytes,
            bound=room.bound,
        ),
        grows,
    )
    if ends is not None and count >= ends:
        if ends < thresholds.WORTH_GROWTH * count:
            return None
        if growth.is_lasting:
            return notice(phrase('Not full before training ends: {grows}', grows=free))
        return notice(phrase('Not full before the epoch ends: {grows}', grows=free))
    full = phrase('Full in {when}: {grows}', when=_phrase_count(run, count), grows=free)
    if ranks > 1:
        full = phrase(
            'Full in {when} if all {ranks} grow so: {grows}',
            when=_phrase_count(run, count),
            ranks=ranks,
            grows=free,
        )
    # it may stop growing once every sample was seen, and in time
    done = run.intervals[-1].iteration - run.meta.start_iteration
    may_stop = batches is not None and done < 2 * batches and count > batches - done
    return notice(full) if ends is None or may_stop else problem(full, _FATAL)


def _judge_short_growth(run: Run) -> Finding | None:
    read = run.every.having('process_own_bytes')
    missing = count_missing_readings(read.column('iteration'))
    if not missing or not len(read):
        return None
    sizes = read.column('process_own_bytes')
    rise = sizes[-1] - sizes[0]
    if rise < max(thresholds.RISE_BYTES, thresholds.RISE_SHARE * sizes[0]):
        return None
    return cannot_tell(
        phrase(
            'the training process took {rise_bytes} more since it began; whether that '
            'goes on shows after {missing_readings:d} more readings, one each interval '
            'and one a second at most',
            rise_bytes=rise,
            missing_readings=missing,
        )
    )


def _list_growth(each: Estimate) -> dict[str, float]:
    """Returns a memory growth (bytes per 1000 iterations) as values for a sentence."""
    return {
        'rise_bytes': each.value,
        'low_bytes': max(each.low, 0),
        'high_bytes': each.high,
        'readings': each.count,
    }


def _phrase_count(run: Run, count: int) -> Text:
    """Phrases a count of iterations with its epoch: ``420 iterations (epoch 3)``."""
    batches = run.meta.loader.batches_per_epoch
    if not batches or run.meta.loop == 'iter':
        return phrase('{iterations}', iterations=count)
    return phrase(
        '{iterations} (epoch {epoch})',
        iterations=count,
        epoch=(run.intervals[-1].iteration + count) // batches + 1,
    )


@rule('MG402', 'Every worker copies the dataset', 'memory_bound')
def judge_copies(run: Run) -> Finding | None:
    """The dataset keeps Python objects, and each worker comes to have its own copy.

    A forked worker shares them at first. Reading an object changes its reference
    count, so the page that holds it is copied, and memory grows through the first
    epoch (pytorch #13246). MMEngine's ``serialize_data=True`` keeps the list as one
    array of bytes, which stays shared; a dataset of your own can keep arrays. Workers
    that are spawned have a copy from the start.
    """
    loader = run.meta.loader
    if not loader.object_bytes or not loader.object_name or not loader.num_workers:
        return None
    copies = loader.num_workers * run.meta.host.ranks
    whole = copies * loader.object_bytes
    facts = {'workers': copies, 'whole_bytes': whole}
    sizes = run.meta.host.ram_available_bytes, run.meta.host.cgroup_memory_bytes
    free = min(filter(None, sizes), default=whole)
    if whole > free and run.status != 'completed':
        detail = phrase(
            '{object_name} holds {object_count:d} Python objects, in all about '
            '{object_bytes}; {workers} on this host copy them as they read, up to '
            '{whole_bytes}, of {free_bytes} that there were when it began.',
            loader,
            free_bytes=free,
            **facts,
        )
        return problem(detail, _FATAL)
    if whole < thresholds.COPIES_NOTICE_BYTES:
        return None
    return notice(
        phrase(
            '{object_name} holds {object_count:d} Python objects, in all about '
            '{object_bytes}; {workers} on this host copy them as they read, up to '
            '{whole_bytes}.',
            loader,
            **facts,
        )
    )


@rule('MG403', '/dev/shm is small')
def judge_shared_memory(run: Run) -> Finding | None:
    """Workers send batches through ``/dev/shm``, which has little free space left.

    When it is full a worker dies: "Bus error ... DataLoader's workers are out of
    shared memory". A container has 64 MiB unless it is started with
    ``--shm-size=8g`` (or ``--ipc=host``). Fewer batches in flight help too: their
    number is ``num_workers`` times ``prefetch_factor``.
    """
    host, loader, batch = run.meta.host, run.meta.loader, run.figures.batch_bytes
    total = host.shm_total_bytes
    least = run.figures.shm_free_bytes
    if not loader.num_workers or not total or not batch or least is None:
        return None
    ahead = _count_ahead(run)
    if not is_shm_small(total, least, host.ranks * ahead * batch):
        return None
    fits = int(thresholds.FULL_SHARE * total / batch / host.ranks)
    return notice(
        phrase(
            'At least {free_bytes} of {total_bytes} were free in /dev/shm; a batch '
            'takes {batch_bytes}, {ahead} are in flight on each rank, and {fitting} '
            'fit.',
            free_bytes=least,
            total_bytes=total,
            batch_bytes=batch,
            ahead=ahead,
            fitting=fits,
        )
    )


@rule('MG404', 'Tensors on the card pile up', 'memory_bound')
def judge_card_growth(run: Run) -> Finding | None:
    """Live tensors on the GPU take more memory with every iteration: a leak.

    The usual reason is a loss, or an output, that is kept with its graph: keep
    ``loss.item()`` or ``loss.detach()``. ``empty_cache()`` does not help, for what
    grows is in use.
    """
    growth = find_growth_of(
        run.every, 'cuda_memory.allocated_bytes', least_bytes=2**20, least_share=0.0
    )
    if growth is None:
        return None
    grows = phrase(
        'Live tensors grow by {rise_bytes} per 1000 iterations ({low_bytes} to '
        '{high_bytes}, {readings}).',
        **_list_growth(growth),
    )
    card, left = find_card_room(run), count_left(run)
    peak = run.figures.gpu_mem_peak_bytes
    if card is None or peak is None:
        return notice(grows)
    count = int(1000 * max(card.room_bytes - peak, 0) / growth.value)
    is_soon = left is not None and count < left
    when = _phrase_count(run, count)
    full = phrase('The card is full in {when}.', when=when)
    if is_soon:
        full = phrase('The card is full in {when}, before training ends.', when=when)
    return weigh(sentences(full, grows), _FATAL if is_soon else None)


@rule('MG405', "The card's memory is in fragments")
def judge_fragments(run: Run) -> Finding | None:
    """The CUDA allocator holds memory in pieces that fit no requested tensor.

    Batches of many sizes cut it up. With torch 2.1 and later,
    ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`` in the environment
    lets blocks grow in place. A retry means that an allocation
    failed, all cached memory was given back, and it was tried again: slow, and the
    last step before "CUDA out of memory".
    """
    figures = run.figures
    reserved, card = figures.gpu_mem_reserved_bytes, find_card_room(run)
    if not reserved:
        return None
    inactive, retries = figures.inactive_bytes or 0, figures.alloc_retries
    is_split = inactive >= thresholds.FRAGMENTS_NOTICE * reserved
    is_full = card is not None and reserved >= thresholds.FULL_SHARE * card.room_bytes
    if not retries and not (is_full and is_split):
        return None
    return notice(
        phrase(
            '{inactive_bytes} of {reserved_bytes} reserved are in split blocks that '
            'nothing uses; {retried_allocations} had to be retried.',
            inactive_bytes=inactive,
            reserved_bytes=reserved,
            retried_allocations=retries,
        )
    )


@rule('MG406', 'One batch makes the peak')
def judge_burst(run: Run) -> Finding | None:
    """One batch's GPU memory peak is far above the usual: a larger batch may not fit.

    The largest padded image or the most boxes make it. Cures: a size limit in the
    pipeline (``Resize``, ``RandomCrop``), ``gpu_assign_thr`` of the assigner, which
    moves the assignment of crowded images to the CPU, ``with_cp=True`` of the
    backbone, a smaller batch.
    """
    peaks = run.steady.having('gpu_mem_peak_bytes')
    usual, card = median(peaks.column('gpu_mem_peak_bytes')), find_card_room(run)
    peak = largest(peaks.column('gpu_mem_peak_bytes'))
    if not usual or not peak or not card or peak < thresholds.BURST_RATIO * usual:
        return None
    if peak < thresholds.FULL_SHARE * card.room_bytes:
        return None
    row = peaks.where(peaks.column('gpu_mem_peak_bytes') == peak).take([0])
    what = []
    for field in ('largest_batch_pixels', 'most_boxes'):
        usual_held, held = median(peaks.column(field)), largest(row.column(field)) or 0
        if not usual_held or held <= usual_held:
            continue
        if field == 'most_boxes':
            what.append(
                phrase(
                    '{held_boxes} (usually {usual_boxes:.0f})',
                    held_boxes=held,
                    usual_boxes=usual_held,
                )
            )
        else:
            what.append(
                phrase(
                    'pixels {held_pixels} (usually {usual_pixels:.0f})',
                    held_pixels=held,
                    usual_pixels=usual_held,
                )
            )
    if not what:  # a first iteration, or a library's workspace
        return None
    batches = run.meta.loader.batches_per_epoch
    share = 100 * run.figures.iterations / batches if batches else 100
    facts = {
        'peak_bytes': peak,
        'iteration': largest(row.column('iteration')),
        'usual_bytes': usual,
        'room_bytes': card.room_bytes,
        'what': tuple(what),
    }
    if share >= 100:
        return notice(
            phrase(
                '{peak_bytes} at iteration {iteration}, usually {usual_bytes}, of '
                '{room_bytes} there is room for: {what}.',
                **facts,
            )
        )
    return notice(
        phrase(
            '{peak_bytes} at iteration {iteration}, usually {usual_bytes}, of '
            '{room_bytes} there is room for: {what}; {epoch_pct} of an epoch was seen, '
            'a larger one may come.',
            epoch_pct=share,
            **facts,
        )
    )


@rule('MG407', 'Validation keeps its results in memory')
def judge_results(run: Run) -> Finding | None:
    """Metrics keep every validation batch's results until the last: memory swings.

    MMEngine's metrics append to ``results`` and compute when all batches are done; rank
    0 then holds those of all ranks. Keep less of each image (fewer boxes with
    ``max_per_img`` of ``test_cfg``; in a metric of your own no masks as arrays, no
    logits, nothing that holds the image), or validate on fewer images.
    """
    kept = [record for record in run.validations if record.result_bytes]
    most = max(kept, key=lambda record: record.result_bytes or 0, default=None)
    if most is None or (most.result_bytes or 0) < thresholds.COPIES_NOTICE_BYTES:
        return None
    ranks = run.meta.world_size
    kept_size = phrase(
        '{result_name} came to {result_bytes} in a validation of {batches}.',
        most,
        batches=most.iterations,
    )
    if ranks > 1:
        kept_size = phrase(
            '{result_name} came to {result_bytes} in a validation of {batches} on this '
            'rank; rank 0 collects those of all {ranks:d}.',
            most,
            batches=most.iterations,
            ranks=ranks,
        )
    room = find_host_room(run)
    free = room and phrase('{free_bytes} were free {bound}.', room)
    return notice(sentences(kept_size, free))


@rule('MG408', 'Open files come near the limit')
def judge_open_files(run: Run) -> Finding | None:
    """The training process has nearly as many files open as it may.

    Each tensor of each batch in flight is an open file, unless
    ``torch.multiprocessing.set_sharing_strategy('file_system')`` is called. At the
    limit a loader ends with "Too many open files" or "received 0 items of ancdata".
    ``ulimit -n 65536`` before training raises it; fewer workers, or batches ahead, need
    less. Files that were opened and never closed count as well.
    """
    most, limit = largest(run.column('open_files')), run.meta.host.open_files_soft
    if not most or not limit or not are_files_few(most, limit):
        return None
    tensors, ahead = run.figures.batch_tensors, _count_ahead(run)
    facts = {'open': most, 'limit': limit, 'ahead': ahead}
    if not tensors:
        return notice(
            phrase(
                '{open} of {limit} files were open; a batch has an unknown number of '
                'tensors, {ahead} batches are in flight.',
                **facts,
            )
        )
    return notice(
        phrase(
            '{open} of {limit} files were open; a batch has {tensors}, {ahead} batches '
            'are in flight.',
            tensors=tensors,
            **facts,
        )
    )


def _count_ahead(run: Run) -> int:
    """Counts the batches in flight of a run's train loader."""
    return count_ahead(run.meta.loader.num_workers, run.meta.loader.prefetch_factor)
