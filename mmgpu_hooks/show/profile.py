"""What ``mmgpu profile`` says."""

from __future__ import annotations

from collections.abc import Sequence

from mmgpu_hooks.schema.tried import Profile
from mmgpu_hooks.show.document import Section, Table, listing
from mmgpu_hooks.show.figures import format_pct, format_seconds, short_path

_BOUNDS = {
    'launches': (
        'Launch-bound: the card waits for the host, which launches kernels one by one.',
        'Larger batches, or compile=True in the config, give it more work per launch.',
    ),
    'kernels': (
        'Kernel-bound: the card computes nearly all the time.',
        'Cheaper arithmetic shortens such a step: AMP, TF32, smaller images.',
    ),
    'both': (
        'Launches and kernels: the card computes, and waits for launches too.',
        'Cheaper arithmetic shortens such a step until launches alone decide.',
    ),
}
_CLOSES_WITHIN_PCT, _FEW_PRODUCTS_PCT, _TENSOR_CORES = 5.0, 30.0, (7, 0)


def describe_profile(profile: Profile) -> list[Section]:
    """What decides, the parts of a step, the modules, the settings of torch."""
    busy_s = sum(one.busy_s for one in profile.parts.values())
    idle_s = sum(one.idle_s for one in profile.parts.values())
    parts = [
        (name, one.busy_s, one.idle_s)
        for name, one in profile.parts.items()
        if one.busy_s or one.idle_s
    ]
    modules = [
        (one.name or '(the model itself)', one.forward_s, one.backward_s)
        for one in profile.modules
    ]
    title, more = _BOUNDS.get(profile.bound or '') or (
        f'Launch-bound or kernel-bound: unknown, as {profile.bound_reason}.',
        'Idle is where no operator of torch ran: Python and other libraries.',
    )
    took = (
        f'A step took {format_seconds(profile.step_s)}, mean of {profile.iterations} '
        f'under the profiler, and {format_seconds(profile.plain_step_s)} without it'
    )
    if profile.kernels:
        each = format_seconds(busy_s / profile.kernels)
        took += f'; it has {profile.kernels:.0f} kernels of {each} on average'
    notes = [_say_amp(profile)]
    gap_pct = 100 * abs((busy_s + idle_s) / profile.step_s - 1)
    if gap_pct > _CLOSES_WITHIN_PCT:
        notes.append(f'The parts are {format_pct(gap_pct)} off the step by the clock.')
    trace = f'{short_path(profile.folder)}/trace.json.gz (open it in ui.perfetto.dev)'
    flags = ', '.join(f'{name} {value}' for name, value in profile.flags.items())
    facts = [('device', profile.device), ('torch', flags), ('trace', trace)]
    return [
        Section(title, sentences=[more, f'{took}.']),
        _table(profile, 'part busy idle', [*parts, ('in all', busy_s, idle_s)]),
        _table(profile, 'module forward backward', modules),
        Section(facts=facts),
        *listing('Notes', notes),
    ]


def _table(
    profile: Profile, head: str, rows: Sequence[tuple[str, float, float]]
) -> Section:
    cells = [
        (name, *map(format_seconds, pair), format_pct(100 * sum(pair) / profile.step_s))
        for name, *pair in rows
    ]
    return Section(table=Table([*head.split(), 'of the step'], cells))


def _say_amp(profile: Profile) -> str:
    """Whether AMP is on, and why it brings little where that shows."""
    said, share = f'AMP is {f"on ({profile.amp})" if profile.amp else "off"}', ''
    products_pct, why = profile.products_pct, ''
    if products_pct is not None:
        share = ' Convolutions and matrix products take '
        share += f'{format_pct(products_pct)} of the busy time.'
    if profile.capability is not None:
        if tuple(profile.capability) < _TENSOR_CORES:
            why = 'this card has no tensor cores'
        elif profile.bound == 'launches':
            why = 'the card waits for launches, of which AMP adds some'
        elif products_pct is not None and products_pct < _FEW_PRODUCTS_PCT:
            why = 'little of the busy time is in what it shortens'
    if why:
        said += f', and {"brings" if profile.amp else "would bring"} little: {why}'
    return f'{said}.{share}'
