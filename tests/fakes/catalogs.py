"""Writes gettext catalogs in the binary format of ``msgfmt``."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path


def write_catalog(folder: Path, language: str, said: Mapping[str, str]) -> None:
    """Writes a ``.mo`` catalog with one plural form, as Chinese has.

    Args:
        folder: Of the catalogs of all languages.
        language: Such as ``zh_CN``.
        said: Translations; the forms of a plural are separated by a zero.
    """
    header = 'Content-Type: text/plain; charset=UTF-8\nPlural-Forms: nplurals=1; '
    entries = sorted({'': f'{header}plural=0;\n', **said}.items())
    keys, texts, places, place = b'', b'', [], 28 + 16 * len(entries)
    for key, text in entries:
        keys += key.encode() + b'\0'
        texts += text.encode() + b'\0'
    key_at, text_at = place, place + len(keys)
    for key, text in entries:
        places.append((len(key.encode()), key_at, len(text.encode()), text_at))
        key_at += len(key.encode()) + 1
        text_at += len(text.encode()) + 1
    count = len(entries)
    body = struct.pack('<7I', 0x950412DE, 0, count, 28, 28 + 8 * count, 0, 0)
    body += b''.join(struct.pack('<2I', *each[:2]) for each in places)
    body += b''.join(struct.pack('<2I', *each[2:]) for each in places)
    path = folder / language / 'LC_MESSAGES' / 'mmgpu_hooks.mo'
    path.parent.mkdir(parents=True)
    path.write_bytes(body + keys + texts)
