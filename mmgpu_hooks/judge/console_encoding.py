"""Decodes a console log in which programs may have written different encodings."""

from __future__ import annotations

import codecs
import contextlib

_MOST_BYTES = 2**18
"""Maximum bytes of a UTF-16 or UTF-32 log that are buffered as one line."""
_MARKS = {
    codecs.BOM_UTF32_LE: 'utf-32-le',
    codecs.BOM_UTF32_BE: 'utf-32-be',
    codecs.BOM_UTF16_LE: 'utf-16-le',
    codecs.BOM_UTF16_BE: 'utf-16-be',
}
"""Encoding names by byte-order mark, with longer marks before their prefixes."""


def make_decoder(start: bytes) -> codecs.IncrementalDecoder | _WideDecoder:
    """Returns a decoder for a console log, chosen by the log's first bytes."""
    encoding = _find_encoding(start)
    if encoding == 'utf-8':
        return codecs.getincrementaldecoder(encoding)('replace')
    return _WideDecoder(encoding)


class _WideDecoder:
    """Decodes a UTF-16 or UTF-32 log line by line, as some lines may be UTF-8."""

    def __init__(self, encoding: str) -> None:
        self._encoding, self._end = encoding, '\n'.encode(encoding)
        self._rest = b''

    def decode(self, data: bytes, final: bool = False) -> str:
        """Decodes bytes to whole lines; ``final`` adds the unfinished last line."""
        *lines, rest = (self._rest + data).split(self._end)
        if final or len(rest) > _MOST_BYTES:
            lines, rest = [*lines, rest], b''
        self._rest = rest
        return ''.join(f'{self._decode_line(line)}\n' for line in lines)

    def _decode_line(self, line: bytes) -> str:
        if b'\n' in line or line.count(0) * 4 < len(line):
            plain = line.replace(b'\0', b'')
            for mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                plain = plain.replace(mark, b'')
            with contextlib.suppress(UnicodeDecodeError):
                return plain.decode()
        return line.decode(self._encoding, 'replace')


def _find_encoding(start: bytes) -> str:
    """Finds a log's encoding by its byte-order mark, or by zeros in its first bytes."""
    for mark, encoding in _MARKS.items():
        if start.startswith(mark):
            return encoding
    zeros = [start[place::4].count(0) * 8 > len(start) for place in range(4)]
    by_zeros = {
        (False, True, False, True): 'utf-16-le',
        (True, False, True, False): 'utf-16-be',
        (False, True, True, True): 'utf-32-le',
        (True, True, True, False): 'utf-32-be',
    }
    return by_zeros.get((zeros[0], zeros[1], zeros[2], zeros[3]), 'utf-8')
