"""Tests that each number's name in JSON answers tells its unit or what it counts."""

from __future__ import annotations

import json

import pytest

from fakes.units import has_unit, list_facts, list_figures
from golden.facts import CASES, SHARED_CONFIG, lay_out, list_cases
from mmgpu_hooks.commands.main import main


@pytest.mark.parametrize(
    ('name', 'is_clear'),
    [
        *(('iter_s', True), ('busy_workers', True), ('rank_memory_gib', True)),
        *(('most', False), ('busy', False), ('rate_of_it', False), ('left', False)),
    ],
)
def test_a_name_without_a_unit_is_found(name, is_clear):
    assert has_unit(name) is is_clear


def test_figures_within_texts_are_found():
    answer = {'a': [{'facts': {'why': {'most': 4, 'iter_s': 1.0}, 'names': ['x']}}]}
    assert [*list_figures([*list_facts(answer)])] == ['most', 'iter_s']


@pytest.mark.parametrize('case', list_cases())
def test_each_figure_of_an_answer_has_its_unit(capsys, tmp_path, case):
    lay_out(CASES / case, tmp_path)
    runs = [str(path) for path in sorted(tmp_path.glob('run*'))]
    asked = ['--dry-run', *runs, '--config', str(SHARED_CONFIG)]
    names = set[str]()
    for words in (['recommend', *asked], ['why', runs[0]]):
        main([*words, '--format', 'json'])
        out = capsys.readouterr().out
        if out:
            names.update(list_figures([*list_facts(json.loads(out))]))
    assert {name for name in names if not has_unit(name)} == set()
