"""Rewrites a config file: the functions that scripts and commands call.

Everything is proven in memory first; the target then appears in one atomic step
or not at all.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Optional

from mmgpu_hooks.config.base_edit import locate_base
from mmgpu_hooks.config.bases import (
    ReadChain,
    is_lazy_text,
    read_bases,
    read_chain,
)
from mmgpu_hooks.config.consistency import complete_settings, render_notes
from mmgpu_hooks.config.edit import HOOK_ROOTS
from mmgpu_hooks.config.hook_entry import (
    disabling_settings,
    enabling_settings,
    place_settings,
    verify_own,
)
from mmgpu_hooks.config.loading import (
    FlatConfig,
    LoadError,
    NoMMEngineError,
    read_config,
)
from mmgpu_hooks.config.outcome import (
    SUFFIX,
    Options,
    RefusedError,
    RewriteOutcome,
    Setting,
    UnseenError,
)
from mmgpu_hooks.config.overlay import render_options
from mmgpu_hooks.config.prove import Job, prove_loaded, prove_static, sketch
from mmgpu_hooks.config.request import LOADERS, parse_settings
from mmgpu_hooks.config.source import SourceText, read_source, render_error
from mmgpu_hooks.config.spelled import has_bases, parse_spelled
from mmgpu_hooks.config.target import locate_target
from mmgpu_hooks.config.write import locked, write_config

_Choose = Callable[[Optional[FlatConfig], ReadChain], Mapping[str, Setting]]

_IN_PLACE = Options(in_place=True)


def rewrite_config(
    source: Path,
    settings: Mapping[str, Setting],
    *,
    output: Path | None = None,
    in_place: bool = False,
    dry_run: bool = False,
    overlay: bool = False,
    edit_base: bool = False,
    load: bool = True,
    suffix: str = SUFFIX,
) -> RewriteOutcome:
    """Changes settings of a config, proven by loading the result.

    The edit touches nothing else in the text, and in MMEngine's view of the
    loaded config nothing but the settings changes (and a variable that holds one
    of them and nothing else uses). Otherwise it is refused and nothing is written.
    Loading executes the config, as MMEngine does; the edit never does.

    Args:
        source: The ``.py`` config.
        settings: Values by dotted key, such as ``train_dataloader.num_workers``;
            ``REMOVE`` makes a key vanish. Besides keys of the three dataloaders:
            arguments of our hook and of ``auto_scale_lr``.
        output: The file to write. Default: ``<stem><suffix>.py`` beside the source,
            where relative bases stay valid.
        in_place: Edit the source itself and keep ``<name>.py.bak``.
        dry_run: Prove the edit, but write nothing.
        overlay: Write a child config that inherits the source, instead of a copy.
        edit_base: Edit, in place, the base that spells the settings.
        load: Load the config with MMEngine as proof, which executes it.
        suffix: What the name of a copy ends in; a source that ends so already, with
            the original beside it, is edited in place.

    Returns:
        What came of it. Bad input is refused there, never raised.

    Example:
        >>> outcome = rewrite_config(
        ...     Path('configs/mine.py'),
        ...     {'train_dataloader.num_workers': 8},
        ...     dry_run=True,
        ... )
        >>> outcome.status, outcome.diff, outcome.reason
    """
    options = Options(output, in_place, dry_run, overlay, edit_base, load, suffix)
    return rewrite_with(source, settings, options)


def rewrite_with(
    source: Path, settings: Mapping[str, Setting], options: Options
) -> RewriteOutcome:
    """Does what :func:`rewrite_config` does, with the options in one."""
    return _rewrite(source, lambda before, read: parse_settings(settings), options)


def rewrite_recommended(
    source: Path, settings: Mapping[str, Setting], options: Options
) -> RewriteOutcome:
    """Does what :func:`rewrite_config` does, wherever our hook is in the config.

    Args:
        source: The ``.py`` config.
        settings: Arguments of our hook are named as those of
            ``default_hooks.gpu_efficiency``. Where the config has no such hook, they
            are left out and a note says so.
        options: Where it goes and how it is proven.
    """
    left_out: list[str] = []

    def choose(before: FlatConfig | None, read: ReadChain) -> Mapping[str, Setting]:
        placed, left_out[:] = place_settings(parse_settings(settings), before, read)
        return placed

    outcome = _rewrite(source, choose, options)
    notes = [
        f'{source} does not say where GPUEfficiencyHook is, so {name} was left out: '
        'add it where the hook is switched on.'
        for name in left_out
    ]
    return replace(outcome, notes=(*outcome.notes, *notes))


def enable_hook(source: Path, options: Options = _IN_PLACE) -> RewriteOutcome:
    """Adds ``GPUEfficiencyHook`` to a config, and drops nobody's hooks.

    See :func:`rewrite_config` for the options and the result.
    """
    return _rewrite(source, enabling_settings, options)


def disable_hook(source: Path, options: Options = _IN_PLACE) -> RewriteOutcome:
    """Takes ``GPUEfficiencyHook`` out of a config.

    See :func:`rewrite_config` for the options and the result.
    """
    return _rewrite(source, disabling_settings, options)


def _rewrite(source: Path, choose: _Choose, options: Options) -> RewriteOutcome:
    job: Job | None = None
    try:
        source = Path(source)
    except TypeError:
        reason = f'expected the path of a config, found {source!r}'
        return RewriteOutcome('refused', Path(), None, None, '', reason)
    try:
        # Parsing an old config may warn of its escape sequences.
        with contextlib.ExitStack() as held:
            held.enter_context(warnings.catch_warnings())
            warnings.simplefilter('ignore')
            if not options.dry_run:
                held.enter_context(locked(source))
            original = read_source(source)
            job = _open_job(source, original, options)
            changed = _prove(job, choose, options)
            if not changed:
                return RewriteOutcome(
                    'unchanged', source, None, None, '', proven=options.load
                )
            assert job.text is not None
            content = job.original.encode(job.text)
            backup = None
            if not options.dry_run:
                if job.shared:
                    held.enter_context(locked(job.edited))
                backup = write_config(job.edited, job.original, job.target, content)
        return RewriteOutcome(
            'rewritten',
            source,
            job.target,
            job.text,
            job.diff,
            backup=backup,
            changes=job.changes,
            notes=tuple(job.notes),
            cfg_options=render_options(job.changes),
            proven=options.load,
        )
    except RefusedError as refusal:
        edited = refusal.path or (job.edited if job else source)
        place = f'{edited}:{refusal.line}' if refusal.line else f'{edited}'
        reason = f'{place}: {refusal.reason}'
    except OSError as error:
        path = error.filename or source
        reason = f'{source}: nothing was written, {path}: {render_error(error)}'
    except RecursionError:
        reason = f'{source}: expected a config, found nesting too deep to edit'
    text, diff = (job.text, job.diff) if job else (None, '')
    return RewriteOutcome('refused', source, None, text, diff, reason)


def _open_job(source: Path, original: SourceText, options: Options) -> Job:
    if options.edit_base and (options.overlay or options.output is not None):
        raise RefusedError(
            'expected an edit of the base in place, found an output or overlay asked '
            'for as well; drop one'
        )
    target = locate_target(
        source, options.output, options.in_place, options.suffix, options.overlay
    )
    lazy = is_lazy_text(original.text)
    return Job(source, source, original, target, options.overlay, lazy)


def _prove(job: Job, choose: _Choose, options: Options) -> bool:
    """Makes the edit and proves it; ``False`` when everything holds already."""
    before = None
    # Before anything is loaded, so that what is asked for is sound.
    read = functools.partial(read_chain, job.source, job.original.text)
    wanted: Mapping[str, Setting] = {}
    try:
        wanted = choose(None, read)
    except UnseenError:
        if not options.load:
            raise
    if options.load:
        before = _read_original(job, wanted)
        wanted = choose(before, read)
    else:
        _verify_unloaded(job, read, wanted)
    workers = [f'{loader}.num_workers' for loader in LOADERS]
    spelled = parse_spelled(job.original.text, workers) if before is None else {}
    settings = complete_settings(before, wanted, spelled)
    if options.edit_base and settings:
        _choose_base(job, settings)
    if before is None:
        return prove_static(job, settings)
    changed = prove_loaded(job, before, settings)
    if changed:
        job.notes += render_notes(
            before, job.changes, is_rate_told=options.is_rate_told
        )
    return changed


def _verify_unloaded(job: Job, read: ReadChain, wanted: Mapping[str, Setting]) -> None:
    for dotted in wanted:
        root, _, key = dotted.partition('.')
        if root in HOOK_ROOTS and '.' in key and not key.endswith('.type'):
            verify_own(read(), dotted)
        none = key == 'num_workers' and wanted[dotted] == 0
        if none and has_bases(job.original.text):
            job.notes.append(
                f'The bases were not loaded: where they set persistent_workers or '
                f'prefetch_factor of {root}, PyTorch refuses {dotted}=0.'
            )


def _read_original(job: Job, wanted: Mapping[str, Setting]) -> FlatConfig:
    try:
        return read_config(job.source)
    except NoMMEngineError as error:
        sketch(job, wanted)
        raise RefusedError(
            f'expected MMEngine to prove the edit, cannot import it ({error}); '
            'install it, rewrite without loading, or apply the diff by hand'
        ) from error
    except LoadError as error:
        with contextlib.suppress(RefusedError):
            sketch(job, wanted)
        hint = '; it starts with a byte-order mark' if job.original.bom else ''
        raise RefusedError(
            f'expected a config that MMEngine loads, it does not ({error}){hint}; '
            'mend it, run where its bases are, or rewrite without loading'
        ) from error


def _choose_base(job: Job, settings: Mapping[str, Setting]) -> None:
    """Turns the job to the file of the chain that spells the settings."""
    originals = {job.source: job.original}
    for path in read_bases(job.source)[1:]:
        try:
            originals[path] = read_source(path)
        except RefusedError as refusal:
            refusal.path = path
            raise
    texts = {path: original.text for path, original in originals.items()}
    base = locate_base(texts, settings)
    job.edited, job.original, job.target = base, originals[base], base
    if base != job.source:
        job.notes.append(f'{base} is shared: every config that inherits it changes.')
