"""Tests that each benchmark can be imported and builds its first case."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip('mmengine', exc_type=ImportError)
pytest.importorskip('mmdet', exc_type=ImportError)

import torch
from mmengine.config import Config

import benchmarks
from benchmarks import (
    costs,
    drift,
    end,
    harness,
    holders,
    host,
    ledger,
    memory,
    memory_causes,
    metric,
    overhead,
    overhead_peer,
    predict,
    python_start,
    quick,
    regret,
    rewrite,
    rewrite_projects,
    runs,
    saves,
    setup_time,
    start,
    tune,
    validation,
    whole,
    why,
    zoo,
)
from benchmarks.gpu_check import check as gpu_check
from benchmarks.harness import Figure
from mmgpu_hooks import GPUEfficiencyHook
from mmgpu_hooks.judge.causes import CAUSES
from mmgpu_hooks.measure import memory as measured_memory
from mmgpu_hooks.schema.judged import Prediction

Build = Callable[[Path, pytest.MonkeyPatch], list[Figure]]


def build_drift(folder: Path, _: pytest.MonkeyPatch) -> list[Figure]:
    outcomes = [
        drift.judge_cell(drift.Cell(kind, 30, 0.4, pairs=40)) for kind in drift.KINDS
    ]
    assert all(outcome.coverage_pct >= 85 for outcome in outcomes)
    assert 'Level shift' in drift.render_outcomes(outcomes)
    coverages, widths = drift.judge_coverage(outcomes), drift.judge_widths(outcomes)
    return [*coverages, *widths, *drift.judge_demo(pairs=5)]


def build_holders(folder: Path, patch: pytest.MonkeyPatch) -> list[Figure]:
    # without its limit, in this process, and no longer than it must
    patch.setattr(holders, 'BATCHES', 40)
    patch.setattr(holders, 'EPOCHS', 1)
    work_dir = folder / 'run'
    case = holders.CASES['a growing training process']
    holders.train(case, str(work_dir), workers=0, ends_workers=False, plants=True)
    (folder / 'run' / 'console.txt').touch()
    answer = holders.find('a growing training process', work_dir)
    assert (answer.sentence, answer.cause) == ('', None)
    return [harness.at_least('planted', answer.planted_mib, 0)]


def build_host(folder: Path, _: pytest.MonkeyPatch) -> list[Figure]:
    host.write_images(folder / 'images')
    config = host.make_config(
        'RTMDet-tiny', folder / 'images', folder, 'Adam, foreach, bfloat16'
    )
    assert config.train_dataloader.dataset.pipeline[1].with_bbox
    models = host.build_models('RTMDet-tiny', is_cut=True)
    timed = host.time_steps(models, True, 2)
    assert timed.count > 200, timed.note
    return [*host.judge_history(is_quick=True)]


def build_ledger(folder: Path, _: pytest.MonkeyPatch) -> list[Figure]:
    name, arguments = next(iter(ledger.WORKLOADS.items()))
    return list(ledger.judge_workload(name, {**arguments, 'iterations': 20}))


def build_memory(folder: Path, _: pytest.MonkeyPatch) -> list[Figure]:
    config = harness.find_mmdet() / 'configs' / memory.MODELS['rtmdet-tiny']
    step = memory.count_step(config, (64, 64))
    assert min(step.saved_bytes, step.gradient_bytes) > 2**20
    found = {
        'total_bytes': {'2': 3 * 2**30},
        'activation_bytes': {'2': 2**30},
        'card': {
            'room_bytes': 2**34,
            'batch_size': 4,
            'safe_batch_size': 2,
            'factor': 1.5,
        },
    }
    published = memory.read_published(config.parents[1] / memory.MODELS['retinanet'])
    assert published == 3.8
    return list(memory.judge_published('retinanet', found, published))


def build_memory_causes(folder: Path, patch: pytest.MonkeyPatch) -> list[Figure]:
    # what a case of its own sets in the process it is alone in
    patch.setattr(measured_memory, 'PERIOD_S', 1.0)
    patch.setattr(memory_causes, 'MEMORY_S', 0)
    patch.setattr(memory_causes, 'MEMORY_ITERATIONS', 40)
    memory_causes.train(memory_causes.CASES['twin: nothing'], str(folder / 'run'))
    found = memory_causes.find('twin: nothing', folder / 'run')
    assert found == memory_causes.FoundMemory({})
    return [harness.exactly('false alarms', len(found.sentences), 0)]


def build_metric(folder: Path, _: pytest.MonkeyPatch) -> list[Figure]:
    case = metric.Case(
        {'metric': ['bbox', 'segm']}, images=8, masks=True, least_times=1
    )
    played = metric.play(case, folder)
    figures = list(metric.judge_case('boxes and masks', case, played))
    differing = [figure for figure in figures if 'differ' in figure.name]
    assert [figure.verdict for figure in differing] == ['met', 'met']
    assert 'ultrafast_pycocotools' in metric.render_cases({'boxes and masks': played})
    return figures


def build_overhead(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    hook, threads = overhead.ours(), torch.get_num_threads()
    monkeypatch.setattr(overhead, 'VALIDATED', 6)
    overhead.train(overhead.build(folder, overhead.Network(), 12, [hook]))
    spent = overhead.Spent([1e-5], [1e-3])
    cost = overhead.net_cost(spent, spent)
    # two threads would wait for each other on the one core of the pairs
    torch.set_num_threads(1)
    try:
        batches = overhead.validate_pairs(4)
    finally:
        torch.set_num_threads(threads)
    return [
        *overhead.judge_cost(cost, 'not installed'),
        *overhead.judge_validations(batches),
    ]


def build_overhead_peer(folder: Path, _: pytest.MonkeyPatch) -> list[Figure]:
    # without the peer itself, as it trains for comparison
    from contextlib import nullcontext

    spent_s = overhead_peer.train_once(
        lambda model: nullcontext(), overhead.Account(), 6
    )
    return [Figure('iteration', spent_s[0])]


def build_predict(folder: Path, _: pytest.MonkeyPatch) -> list[Figure]:
    works = costs.make_works()
    for number, pipeline in enumerate((predict.SEEN[0], *predict.MMDET)):
        data = pipeline.make_dataset(folder / str(number), works, 8)
        assert {'inputs', 'data_samples'} <= set(data[0])
    predicted = Prediction(2, 2, 4, 0.1, 0.09, 0.11, 0.0, None, 'step')
    case = predict.Case('CPU', 'seen', [0.1], predicted)
    return list(predict.judge_cases('seen', [case]))


def build_regret(folder: Path, _: pytest.MonkeyPatch) -> list[Figure]:
    job = regret.SEEN[0]
    setting = regret.LoaderChoice(regret.DEFAULT, persistent_workers=True)
    trial = regret.train_job(job, setting, costs.make_works())
    judged = regret.judge_jobs([trial], count=1)
    lost = regret.judge_lost(judged.outcomes)
    return [*lost, *regret.compare_rules(judged.outcomes, judged.rules)]


def build_rewrite(folder: Path, _: pytest.MonkeyPatch) -> list[Figure]:
    path = folder / 'config.py'
    path.write_text('train_dataloader = dict(num_workers=2, batch_size=2)\n')
    settings = rewrite.choose_settings(rewrite.flatten(rewrite.load(path).to_dict()))
    outcome = rewrite.rewrite_config(path, settings)
    assert outcome.status == 'rewritten'
    assert rewrite.is_kept(path.read_text(), outcome.target.read_text())
    tally = rewrite.Tally(files=1, rewritten=1, seconds=[0.01])
    return list(rewrite.list_figures(tally))


def build_rewrite_projects(folder: Path, _: pytest.MonkeyPatch) -> list[Figure]:
    wheel = folder / 'mmpose-1.3.2-py3-none-any.whl'
    text = 'train_dataloader = dict(num_workers=2, batch_size=2)\n'
    with zipfile.ZipFile(wheel, 'w') as archive:
        archive.writestr('mmpose/.mim/configs/a/b.py', text)
        archive.writestr('mmpose/.mim/configs/a/c.py', "_base_ = './none.py'\n")
        archive.writestr('mmpose/.mim/tools/train.py', 'raise RuntimeError\n')
        archive.writestr('mmpose/__init__.py', 'raise RuntimeError\n')
    root = rewrite_projects.unpack_configs('mmpose', folder, folder / 'mmpose')
    paths = sorted(root.rglob('*'))
    assert [path.name for path in paths] == ['a', 'b.py', 'c.py']
    tally = rewrite.rewrite_all(paths[1:], root, rewrite_projects.read_options)
    assert (tally.files, tally.rewritten, [*tally.unloaded]) == (2, 1, ['a/c.py'])
    table = rewrite_projects.render_tallies({'mmpose': tally})
    assert re.search(r'\| mmpose 1.3.2 +\| 2 +\| 1 +\| 0 +\| 0 +\| 0 +\| 1 ', table)
    return list(rewrite_projects.list_figures({'mmpose': tally}))


def build_runs(folder: Path, _: pytest.MonkeyPatch) -> list[Figure]:
    runs.write_fleet(folder / 'listed', 30, has_verdict=True)
    listing = runs.list_runs(folder / 'listed', 'csv')
    return list(runs.judge_listings('csv', 30, [listing]))


def build_saves(folder: Path, _: pytest.MonkeyPatch) -> list[Figure]:
    run = saves.train_planted(folder, saves=2, megabytes=1.0)
    config = saves.write_detector(folder / 'detector', num_workers=1)
    loader = Config.fromfile(config).train_dataloader
    assert Path(loader.dataset.data_root, loader.dataset.ann_file).is_file()
    return [saves.judge_healthy(1.0, run), saves.judge_parts(run.saves)]


def build_tune(folder: Path, patch: pytest.MonkeyPatch) -> list[Figure]:
    # a short one of each number of workers, in as many processes as there are cores
    patch.setattr(tune, 'LENGTH', 300)
    return list(tune.judge_simulated(1))


def build_validation(folder: Path, _: pytest.MonkeyPatch) -> list[Figure]:
    said = [validation.Forecast('planted', 100.0, 104.0, 90.0, 110.0, eta_s=120.0)]
    assert '+4.0 %' in validation.render_forecasts(said)
    figures = [*validation.play('two metrics', folder / 'run')]
    figures += validation.judge_forecasts(said)
    verdicts = {figure.name: figure.verdict for figure in figures}
    assert verdicts['end after a tenth: off, median'] == 'met'
    return figures


def build_whole(folder: Path, patch: pytest.MonkeyPatch) -> list[Figure]:
    work = folder / 'bench'
    whole.prepare(work, ['nothing wrong'])
    for case in whole.CASES.values():
        loaded = whole.read_loaded(work, case.config, {})
        assert loaded['default_hooks']['gpu_efficiency']
        # a key that the config does not have would be another setting
        known = {
            f'{name}.{key}'
            for name in ('train_dataloader', 'val_dataloader', 'val_evaluator')
            for key in loaded.get(name) or ()
        }
        arguments = inspect.signature(GPUEfficiencyHook).parameters
        known |= {f'default_hooks.gpu_efficiency.{name}' for name in arguments}
        assert case.best.keys() <= known
    for ending in whole.ENDINGS.values():
        loaded = whole.read_loaded(work, ending.config, ending.cure)
        assert loaded['default_hooks']['gpu_efficiency'] and ending.cause in CAUSES
    # the real way, of a few iterations: train, and do what the `next` line says
    case = whole.CASES['nothing wrong']
    short = {'train_dataloader.dataset.length': 160, 'model.step_ms': 5}
    trained = whole.train(work, case.config, 'work_dirs/short', short)
    assert trained.whole_s > 0.2
    written = whole.follow(work, trained.next_line)
    assert written is None or (work / written).is_file()
    for starter in ('python tools/train.py', 'python -m package.train', 'train'):
        assert whole.follow(work, f'{starter} new.py') == 'new.py'
    outcome = whole.Outcome(case, 'balanced', {}, 'said', [trained] * 2)
    assert whole.render_cases({'nothing wrong': outcome}).count('\n') == 2
    return list(whole.list_figures({'nothing wrong': outcome}))


def build_setup_time(folder: Path, _: pytest.MonkeyPatch) -> list[Figure]:
    def made_in(*seconds: float) -> setup_time.SetUp:
        steps = zip(setup_time.STEPS, seconds, strict=True)
        return {stamp: setup_time.Step(wall_s, 2 * wall_s) for stamp, wall_s in steps}

    now, before = made_in(1, 9, 90, 0), made_in(1, 9, 390, 0)
    found = {
        (commit, which): [steps]
        for commit, steps in {'HEAD': now, 'HEAD~9': before}.items()
        for which in (setup_time.FIRST, setup_time.NEXT)
    }
    figures = list(setup_time.list_figures(found))
    verdicts = {figure.name: figure.verdict for figure in figures if figure.verdict}
    assert verdicts == {
        'HEAD, first clone: CPU of that': 'met',
        'HEAD, next clone: install MMCV, MMEngine and MMDetection': 'missed',
    }
    assert [figure.value for figure in figures[-2:]] == [0.25, 0.25]
    return figures


def build_end(folder: Path, _: pytest.MonkeyPatch) -> list[Figure]:
    end.whole.prepare(folder, [whole.DEMO])
    for is_written in (False, True):
        config = Config.fromfile(end.write_config(folder, is_written))
        assert config.train_cfg.max_epochs == 1
        hook = config.default_hooks.gpu_efficiency
        assert hook.type == 'mmgpu_hooks.GPUEfficiencyHook'
        assert hook.write_config == is_written
    planted = [
        end.Pair(end.End(0.5, is_written=False), end.End(0.5 + s, is_written=True))
        for s in (1.0, 1.5, 5.0)
    ]
    figures = list(end.list_figures(planted))
    assert [figure.verdict for figure in figures] == ['', 'met', 'met']
    assert figures[1].value == 1.5
    return figures


def build_start(folder: Path, _: pytest.MonkeyPatch) -> list[Figure]:
    code = next(iter(python_start.PROGRAMS.values()))
    pairs = python_start.measure_pairs(code, count=3)
    assert all(min(pair.plain.wall_s, pair.below.wall_s) > 0 for pair in pairs)
    spent = python_start.Spent
    planted = [
        python_start.Starts(spent(0.01, 0.01), spent(0.01 + ms / 1000, 0.01))
        for ms in (1.0, 1.5, 5.0)
    ]
    longer = list(python_start.list_figures('planted', planted))[1]
    assert (round(longer.value or 0, 6), longer.verdict) == (1.5, 'met')
    spec = start.list_planted(folder, is_quick=True)['slow first step']
    judged = list(start.judge_start('slow first step', folder / 'planted', spec))
    assert judged[0].name == 'slow first step: first_step off'
    return [*python_start.list_figures('python -c pass', pairs), *judged]


def build_why(folder: Path, _: pytest.MonkeyPatch) -> list[Figure]:
    name = 'an exception in a sample'
    played = {name: [why.play_and_ask(why.CASES[name], folder / 'played')]}
    assert name in why.render_cases(played)
    return list(why.list_figures(played))


def build_zoo(folder: Path, patch: pytest.MonkeyPatch) -> list[Figure]:
    patch.setattr(zoo, 'write_demo_dataset', lambda kept, **_: kept.mkdir())
    zoo.prepare(folder / 'zoo')
    results = {}
    for name, model in zoo.MODELS.items():
        path = folder / 'zoo' / f'{name}.py'
        loader = zoo.write_config(model, path)
        written = Config.fromfile(path)
        assert 'init_cfg=None' in path.read_text() or not model.pretrained
        assert written.train_dataloader.num_workers == loader['num_workers']
        assert written.train_dataloader.batch_size == zoo.BATCH_SIZE
        judged = {'verdict': {'name': 'balanced'}, 'changes': []}
        results[name] = zoo.Result(model, loader, 0.5, judged, None)
    gain = {'value': -0.2, 'low': -0.3, 'high': -0.1}
    name = next(iter(zoo.MODELS))
    verified = {'gain': gain, 'predicted_gain': None}
    results[name] = dataclasses.replace(results[name], verified=verified)
    assert '-20 % (-30 to -10)' in zoo.render_models(results)
    figures = list(zoo.list_figures(results))
    assert figures[0].verdict == 'missed' and figures[0].note == name
    return figures


BUILDERS: dict[str, Build] = {
    name.removeprefix('build_'): build
    for name, build in list(globals().items())
    if name.startswith('build_')
}
MODULES = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
ELSEWHERE = {
    'costs': 'of the others',
    'python_start': 'a part of start',
    'start_training': 'start trains by it',
    'equal': 'by the tests of optimize',
    'gpu_check': 'test_gpu_check.py plays it',
    'harness': 'test_harness.py',
    'matrix': 'test_matrix.py',
    'markdown': 'every table is made by it',
    'planted_by_others': 'test_predict.py',
    'quick': 'test_quick.py',
    'readme': 'test_readme.py',
    'toy': 'of the others',
    'validation_training': 'started by `validation`',
    'whole_ends': 'of `whole`',
    'whole_toys': 'of `whole`',
    'whole_training': 'started by `whole`',
    'why_hangs': 'of `why`',
    'why_training': 'started by `why`',
}


def test_every_module_was_found():
    """Tests that all benchmark modules are found, so that the other tests run."""
    assert {*BUILDERS, *ELSEWHERE} <= {*MODULES}
    assert {*quick.BENCHMARKS} <= {*MODULES}


@pytest.mark.parametrize('name', MODULES)
def test_each_module_is_imported_and_has_its_first_case(name):
    module = importlib.import_module(f'benchmarks.{name}')
    # a module of neither kind is new here
    assert (name in BUILDERS) != (name in ELSEWHERE)
    has_table = name != 'harness' and 'Benchmark' in vars(module)
    assert (name in quick.BENCHMARKS) == (has_table or name == 'gpu_check')


@pytest.mark.parametrize('name', quick.BENCHMARKS)
def test_each_benchmark_has_a_target_of_make_and_a_line_of_its_help(name):
    makefile = (Path(benchmarks.__path__[0]).parent / 'Makefile').read_text()
    rule = rf'^(\S+):.*\n\t.*benchmarks\.{name} '
    (target,) = re.findall(rule, makefile, re.MULTILINE)
    assert f"echo 'make {target} " in makefile


@pytest.mark.parametrize('name', quick.BENCHMARKS)
def test_each_benchmark_has_a_quick_form(name, capsys):
    module = gpu_check if name == 'gpu_check' else getattr(benchmarks, name)
    with pytest.raises(SystemExit, match='0'):
        module.main(['--help'])
    assert '--quick' in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize('name', BUILDERS)
def test_the_first_case_is_built_and_has_a_table(name, tmp_path, monkeypatch):
    warnings.simplefilter('ignore')
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        figures = BUILDERS[name](tmp_path, monkeypatch)
    finally:
        torch.set_num_threads(threads)
    assert figures
    table = harness.render_figures(figures)
    assert len(table.splitlines()) == 2 + len(figures)
