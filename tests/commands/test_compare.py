from __future__ import annotations

import pytest

from fakes.compared_runs import make_noisy_run, write_run
from fakes.runs import make_run
from mmgpu_hooks.commands.main import main


@pytest.fixture
def runs(tmp_path):
    before = write_run(tmp_path / 'before', make_noisy_run(1))
    loader = make_run(run_id='b').loader
    slower = make_noisy_run(2, data_wait_s=0.16, loader=loader)
    return str(before), str(write_run(tmp_path / 'after', slower))


def test_a_folder_without_evidence_is_refused(tmp_path, runs, capsys):
    assert main(['compare', runs[0], str(tmp_path / 'none')]) == 2
    assert 'found nothing there' in capsys.readouterr().err
    (tmp_path / 'plain').mkdir()
    (tmp_path / 'plain' / 'scalars.json').write_text('{}\n')
    assert main(['compare', runs[0], str(tmp_path / 'plain')]) == 2
    assert 'train with the hook' in capsys.readouterr().err
