"""Tests that the cases of parametrised tests have readable ids."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.case_ids import name_value

LONGEST = 120


def find_fault(case: str, params: Mapping[str, object]) -> str | None:
    """Returns why a parametrised case's id is unreadable; ``None`` if it reads well.

    Args:
        case: The id.
        params: Values of the case by the name of the argument.
    """
    for name, value in params.items():
        # so pytest names an object that has no name of its own
        is_numbered = re.search(rf'(^|-){name}\d+(-|$)', case)
        if is_numbered and not isinstance(value, str):
            return f'{name} is numbered'
    if re.search('<lambda>|<function|<[^>]* object| at 0x', case):
        return 'it shows an object'
    if '\\' in case:
        return 'it holds characters that are escaped'
    if len(case) > LONGEST:
        return f'it is longer than {LONGEST} characters'
    return None


def find_twins(cases: Collection[str]) -> list[str]:
    """Returns common beginnings of ids that pytest distinguishes by a number only.

    Args:
        cases: The ids of one test.
    """
    numbers = defaultdict(list)
    for case in cases:
        # no number of the case itself, as in 0-1 or 2.5
        match = re.fullmatch(r'(.*[^-.,=\d\s])_?(\d+)', case)
        if match is not None:
            numbers[match[1]].append(int(match[2]))
    return [
        name
        for name, found in numbers.items()
        if len(found) > 1 and sorted(found) == [*range(len(found))]
    ]


def test_cases_have_ids_that_read(collected):
    """Tests that the ids of all collected test cases are readable."""
    tests = defaultdict(list)
    faults = {}
    for item in collected:
        if isinstance(item, pytest.Function) and hasattr(item, 'callspec'):
            tests[item.nodeid.partition('[')[0]].append(item.callspec.id)
            if fault := find_fault(item.callspec.id, item.callspec.params):
                faults[item.nodeid] = fault
    for name, cases in tests.items():
        if twins := find_twins(cases):
            faults[name] = f'cases that are named alike: {twins}'
    assert not faults, '\n'.join(f'{name}: {fault}' for name, fault in faults.items())


@pytest.mark.parametrize(
    ('case', 'params', 'fault'),
    [
        ('2-workers1', {'count': 2, 'workers': object()}, 'workers is numbered'),
        ('kwargs0', {'kwargs': {}}, 'kwargs is numbered'),
        ('2-two workers', {'count': 2, 'workers': object()}, None),
        ('workers1', {'workers': 'workers1'}, None),
        ('<lambda>', {'call': len}, 'it shows an object'),
        ('two\\nlines', {'text': 'two\nlines'}, 'it holds characters that are escaped'),
        (121 * 'x', {'text': ''}, 'it is longer than 120 characters'),
    ],
    ids=['second', 'first', 'named', 'text', 'lambda', 'escaped', 'long'],
)
def test_the_fault_of_an_id_is_found(case, params, fault):
    assert find_fault(case, params) == fault


@pytest.mark.parametrize(
    ('cases', 'twins'),
    [
        (['a0', 'a1', 'b'], ['a']),
        (['9_0', '9_1', 'Run0', 'Run1', 'Run2'], ['9_', 'Run']),
        (['0-0', '0-1', '1.0', '1.1', 'n=0', 'n=1'], []),
        (['nfs', 'nfs4', 'rank1', 'rank2'], []),
    ],
    ids=['texts', 'objects', 'numbers', 'names'],
)
def test_cases_that_are_named_alike_are_found(cases, twins):
    assert find_twins(cases) == twins


@dataclass
class Plain:
    first: int = 1
    second: str = 'two'
    third: float = 3.0
    fourth: bool = False


@pytest.mark.parametrize(
    ('value', 'name'),
    [
        (None, None),
        (2.5, None),
        (Plain, None),
        ('a\n  b\\c', 'a bc'),
        ('', 'empty'),
        ('\u00b2', 'superscript two'),
        (b'caf\xe9', 'caf latin small letter e with acute'),
        ([], 'nothing'),
        ([1, 'x', None], '1 x None'),
        ([2.0] * 9, '9 float'),
        ({'a': [1, 2], 'b': {}}, 'a=1 2, b=nothing'),
        (Plain(), 'Plain'),
        (Plain(second='2'), 'second=2'),
        ({'plain': Plain(2, '2', 2.0, True)}, 'plain=Plain'),
        (KeyError('x'), "KeyError 'x'"),
        (SimpleNamespace(a=1), 'SimpleNamespace'),
        (100 * 'x' + 'end', 27 * 'x' + '...' + 17 * 'x' + 'end'),
    ],
)
def test_the_id_of_a_case_names_its_value(value: Any, name: str | None):
    assert name_value(value) == name
