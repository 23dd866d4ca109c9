"""Tests config rewrites on case files, and on configs that need no change."""

from __future__ import annotations

import pytest
from config.case_file import CASES, read_case

from mmgpu_hooks.config.loading import read_config
from mmgpu_hooks.config.rewrite import rewrite_config

pytest.importorskip('mmengine.config', reason='the proof loads configs with MMEngine')


@pytest.fixture(params=CASES, ids=lambda path: path.stem)
def case(request, tmp_path):
    found = read_case(request.param)
    for name, text in found.files.items():
        (tmp_path / name).write_text(text)
    return found


@pytest.fixture
def config(tmp_path):
    return tmp_path / 'config.py'


def test_each_case_is_rewritten_as_expected_and_only_once(case, config):
    config.write_text(case.before)
    outcome = rewrite_config(config, case.settings, output=config.with_name('new.py'))
    assert outcome.reason is None
    assert (outcome.status, outcome.proven) == ('rewritten', True)
    assert outcome.target.read_text() == case.after
    # MMEngine itself, without our proof in between
    loaded = read_config(outcome.target)
    for dotted, value in case.settings.items():
        assert loaded[tuple(dotted.split('.'))] == value
    again = rewrite_config(outcome.target, case.settings)
    assert (again.status, again.diff) == ('unchanged', '')


def test_the_command_line_says_the_same(case, config):
    from mmengine.config import Config, DictAction

    config.write_text(case.before)
    outcome = rewrite_config(config, case.settings, dry_run=True)
    options = {}
    for word in outcome.cfg_options.split()[1:]:
        key, value = word.split('=', 1)
        options[key] = DictAction._parse_iterable(value)
    merged = Config.fromfile(config, import_custom_modules=False)
    merged.merge_from_dict(options)
    for dotted, value in case.settings.items():
        found = merged
        for key in dotted.split('.'):
            found = found[int(key) if key.isdigit() else key]
        # MMEngine makes a list of what commas separate
        listed = ','.join(found) if isinstance(found, list) else found
        assert listed == value


def test_a_config_that_has_the_settings_already_is_not_written(case, config):
    config.write_text(case.unchanged)
    before = sorted(config.parent.iterdir())
    outcome = rewrite_config(config, case.settings)
    assert outcome.reason is None
    assert (outcome.status, outcome.target, outcome.diff) == ('unchanged', None, '')
    assert config.read_text() == case.unchanged
    assert sorted(config.parent.iterdir()) == before
