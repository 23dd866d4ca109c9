"""The colours of pictures and page, light and dark; each pair is checked by a test."""

from __future__ import annotations

COLORS: dict[str, tuple[str, str]] = {
    'paper': ('#ffffff', '#14171a'),
    'panel': ('#f6f7f8', '#1b1f23'),
    'ink': ('#1a1d21', '#e8eaed'),
    'faint': ('#565d66', '#a3abb5'),
    'rule': ('#d9dde2', '#333a42'),
    'accent': ('#0b57b0', '#7db4f5'),
    'problem': ('#b3261e', '#ff8f86'),
    'notice': ('#7a5200', '#e9b44c'),
    'ok': ('#1c6b3a', '#69c98d'),
    # fills: 3:1 against the paper, and neighbours of a bar differ in lightness
    'data_wait': ('#c2410c', '#f08a4b'),
    'step': ('#2f6fb2', '#5b9bd8'),
    'hooks': ('#5b3f99', '#b69cf0'),
    'checkpoint_save': ('#8f6410', '#d8ae4a'),
    'validation': ('#176a5e', '#54bfae'),
    'startup': ('#8f2f63', '#e489b8'),
    'resume': ('#7a4a1d', '#c99a6b'),
    'teardown': ('#4f5d2f', '#a9bb7c'),
    'loop': ('#3f5a73', '#93b0c9'),
    'other': ('#69717b', '#8d96a0'),
    'gpu': ('#3c7d2b', '#86c775'),
}
"""Each role's colour on a light and on a dark ground."""

ON_FILL = {'light': '#ffffff', 'dark': '#101316'}
"""Text on a filled bar."""


def color(role: str, *, dark: bool = False) -> str:
    """The colour of a role.

    Raises:
        KeyError: For a role that is not in the palette.
    """
    if role == 'on_fill':
        return ON_FILL['dark' if dark else 'light']
    return COLORS[role][dark]


def css_variables(*, dark: bool) -> str:
    """Declarations for a rule of CSS: ``--ink:#1a1d21;...``."""
    names = [*COLORS, 'on_fill']
    return ''.join(f'--{name}:{color(name, dark=dark)};' for name in names)
