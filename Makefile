# `make help` lists the targets. Each does the set-up it needs, in .venv.
PYTHON ?= python3
# Options for every `pip install`, such as an index: make PIP_FLAGS='--index-url ...'
PIP_FLAGS ?=
# Options for the benchmarks: make bench-overhead BENCH_FLAGS='--output FILE'
BENCH_FLAGS ?=

VENV := .venv
BIN := $(VENV)/bin
# The tools of `make dist` and `make docs`, which need nothing of .venv
DIST_BIN := .venv-dist/bin
DOCS_BIN := .venv-docs/bin
# On which the wheel is tried: make dist PYTHONS='3.9 3.12'
PYTHONS ?= 3.9 3.10 3.11 3.12 3.13
# What is trained in: make matrix STACKS='oldest fork', of benchmarks/matrix.py
STACKS ?=
PIP_INSTALL := $(BIN)/python -m pip install --quiet $(PIP_FLAGS)
DEMO_CONFIG := configs/demo/rtmdet-tiny_demo.py
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DELETE_ON_ERROR:
.PHONY: help setup demo dist docs matrix messages reference test test-timing test-slow test-slow-timing test-again lint clean bench-drift bench-end bench-host bench-ledger
.PHONY: bench-holders bench-overhead bench-memory bench-memory-causes bench-metric bench-predict
.PHONY: bench-quick bench-regret bench-runs
.PHONY: bench-rewrite bench-rewrite-projects bench-saves bench-setup bench-start bench-tune bench-validation bench-whole bench-why bench-zoo
.PHONY: gpu-check

help:
	@echo 'make demo   write a data set, train three times with MMDetection, compare (7 minutes)'
	@echo 'make test   run the tests'
	@echo 'make test-slow   the long ones: real SLURM, torchrun ranks (25 minutes)'
	@echo 'make test-slow-timing  the long ones that measure times: on a quiet machine (9 minutes)'
	@echo 'make test-again  once more, and alone, what failed'
	@echo 'make lint   run ruff, mypy (package, benchmarks, tests) and import-linter'
	@echo 'make setup  only do the set-up that the others do first (5 minutes, once)'
	@echo 'make messages  sentences into the catalogs of languages, and those compiled'
	@echo 'make reference  write docs/en/reference from the code'
	@echo 'make docs   build the pages of docs/ as sites, in docs/_build, and try their links (1 minute)'
	@echo 'make dist   build the wheel, and try it on each Python at hand (5 minutes)'
	@echo 'make matrix train the toys, and MMDetection, in other versions of torch and MMEngine (40 minutes)'
	@echo 'make clean  remove what demo and tests wrote; .venv stays'
	@echo 'make bench-drift     intervals of short, drifting runs against planted truth (5 minutes)'
	@echo 'make bench-end       what a training ends later for its recommended config (7 minutes)'
	@echo 'make bench-holders   planted holders of the host memory under a limit (7 minutes)'
	@echo 'make bench-host      host overhead of a step with optimize, the same bits? (25 minutes)'
	@echo 'make bench-ledger    planted seconds against the time ledger (1 minute)'
	@echo 'make bench-memory    memory estimates of 14 models against real steps (10 minutes)'
	@echo 'make bench-memory-causes planted reasons for full memory, and what is found (5 minutes)'
	@echo 'make bench-metric    COCO metrics on fast backends against pycocotools (15 minutes)'
	@echo 'make bench-overhead  what the hook costs, beside TraceML (10 minutes)'
	@echo 'make bench-predict   planted pipelines against predictions (25 minutes)'
	@echo 'make bench-quick     the quick form of every benchmark, to see that all run (25 minutes)'
	@echo 'make bench-regret    recommended settings against all others (25 minutes)'
	@echo 'make bench-rewrite   rewrite all configs of MMDetection (7 minutes)'
	@echo 'make bench-rewrite-projects   rewrite all configs of six other projects of OpenMMLab (25 minutes)'
	@echo 'make bench-runs      thousands of runs: listed, and judged by processes and Dask (10 minutes)'
	@echo 'make bench-saves     slow saves, their planted causes and cures (7 minutes)'
	@echo 'make bench-setup     the set-up of a clone, step by step (10 minutes)'
	@echo 'make bench-start     planted and real starts against their account, and its cures (10 minutes)'
	@echo 'make bench-tune      trainings that tune themselves against the best setting (55 minutes)'
	@echo 'make bench-validation planted validations, and the end after a tenth of trainings (5 minutes)'
	@echo 'make bench-whole     trainings before and after their own advice (35 minutes)'
	@echo 'make bench-why       planted ends of trainings, and the cause that is named (18 minutes)'
	@echo 'make bench-zoo       four configs of MMDetection, as shipped and as recommended (30 minutes)'
	@echo 'make gpu-check       what only a CUDA machine can show, its table kept (9 minutes)'
	@echo 'Options: PYTHON=/path/to/python3 (3.10 to 3.13), PIP_FLAGS=...,'
	@echo '         BENCH_FLAGS=--output keeps the table of a benchmark, --quick tries it'

demo: setup
	$(BIN)/python tools/demo.py $(DEMO_CONFIG) --work-dir work_dirs/demo

# Tests with the given options. pytest's exit code 1 is of tests that failed; any other is
# of a run that was cut short, of which nothing is tried again.
run-tests = rm -f $(VENV)/.cut_short; $(BIN)/python -m pytest $(1) || \
    { [ $$? = 1 ] || touch $(VENV)/.cut_short; exit 1; }

# those that measure times run after the others, alone
test: setup
	$(call run-tests,-n 2 --dist loadfile -m 'not timing')
	$(MAKE) test-timing

test-timing: setup
	$(call run-tests,-m timing $$(grep -rl mark.timing tests --include='test_*.py'))

# one by one: most start a training, or a cluster, that wants both cores
test-slow: setup
	$(call run-tests,-m 'slow and not timing')

# by hand, on a quiet machine: nine minutes that no busy one passes
test-slow-timing: setup
	$(call run-tests,-m 'slow and timing')

# once more, one by one, what failed before
test-again: setup
	@[ ! -e $(VENV)/.cut_short ] || { echo 'the tests were cut short: none is tried again'; exit 1; }
	$(BIN)/python -m pytest -m 'slow or not slow' --last-failed --last-failed-no-failures none

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/lint-imports

# of a language: mmgpu_hooks/locale/zh_CN/LC_MESSAGES/mmgpu_hooks.po
messages: setup
	$(BIN)/python requirements/messages.py

# pages that say what the code does: rules, causes, scalars, evidence, JSON answers
reference: setup
	$(BIN)/python requirements/reference.py

dist: .venv-dist/.tools
	rm -rf dist build .nox/rows
	$(DIST_BIN)/python -m build --quiet
	$(DIST_BIN)/twine check --strict dist/*
	$(DIST_BIN)/check-wheel-contents dist/*.whl
	PYTHONS='$(PYTHONS)' PIP_FLAGS='$(PIP_FLAGS)' $(DIST_BIN)/nox -- $(BENCH_FLAGS)

# some stacks, or all
matrix: .venv-dist/.tools
	PYTHONS='$(PYTHONS)' PIP_FLAGS='$(PIP_FLAGS)' $(DIST_BIN)/nox --session \
	    $(if $(STACKS),$(foreach name,$(STACKS),'stack($(name))'),stack) matrix_table -- $(BENCH_FLAGS)

# the same settings for every language; each warning is an error
SPHINX := $(DOCS_BIN)/sphinx-build --quiet --nitpicky --fail-on-warning --keep-going -c docs

docs: .venv-docs/.tools
	rm -rf docs/_build
	$(SPHINX) -D language=en docs/en docs/_build/en
	$(if $(wildcard docs/zh_cn/index.md),$(SPHINX) -D language=zh_CN docs/zh_cn docs/_build/zh_cn)
	$(DOCS_BIN)/python requirements/links.py docs/_build

.venv-%/.tools: requirements/%.txt
	@'$(PYTHON)' -m venv .venv-$*
	@.venv-$*/bin/python -m pip install --quiet $(PIP_FLAGS) -r $<
	@touch $@

bench-overhead: $(VENV)/.bench
	$(BIN)/python -m benchmarks.overhead $(BENCH_FLAGS)

bench-drift: setup
	$(BIN)/python -m benchmarks.drift $(BENCH_FLAGS)

bench-end: setup
	$(BIN)/python -m benchmarks.end $(BENCH_FLAGS)

bench-holders: setup
	$(BIN)/python -m benchmarks.holders $(BENCH_FLAGS)

bench-host: setup
	$(BIN)/python -m benchmarks.host $(BENCH_FLAGS)

bench-ledger: setup
	$(BIN)/python -m benchmarks.ledger $(BENCH_FLAGS)

bench-memory: setup
	$(BIN)/python -m benchmarks.memory $(BENCH_FLAGS)

bench-memory-causes: setup
	$(BIN)/python -m benchmarks.memory_causes $(BENCH_FLAGS)

bench-metric: setup
	$(BIN)/python -m benchmarks.metric $(BENCH_FLAGS)

bench-predict: setup
	$(BIN)/python -m benchmarks.predict $(BENCH_FLAGS)

# with the tools of bench-overhead
bench-quick: $(VENV)/.bench
	PIP_FLAGS='$(PIP_FLAGS)' $(BIN)/python -m benchmarks.quick $(BENCH_FLAGS)

bench-regret: setup
	$(BIN)/python -m benchmarks.regret $(BENCH_FLAGS)

bench-rewrite: setup
	$(BIN)/python -m benchmarks.rewrite $(BENCH_FLAGS)

bench-rewrite-projects: setup
	PIP_FLAGS='$(PIP_FLAGS)' $(BIN)/python -m benchmarks.rewrite_projects $(BENCH_FLAGS)

bench-runs: setup
	$(BIN)/python -m benchmarks.runs $(BENCH_FLAGS)

bench-saves: setup
	$(BIN)/python -m benchmarks.saves $(BENCH_FLAGS)

bench-setup: setup
	PIP_FLAGS='$(PIP_FLAGS)' $(BIN)/python -m benchmarks.setup_time $(BENCH_FLAGS)

bench-start: setup
	$(BIN)/python -m benchmarks.start $(BENCH_FLAGS)

bench-tune: setup
	$(BIN)/python -m benchmarks.tune $(BENCH_FLAGS)

bench-validation: setup
	$(BIN)/python -m benchmarks.validation $(BENCH_FLAGS)

bench-whole: setup
	$(BIN)/python -m benchmarks.whole $(BENCH_FLAGS)

bench-why: setup
	$(BIN)/python -m benchmarks.why $(BENCH_FLAGS)

bench-zoo: setup
	$(BIN)/python -m benchmarks.zoo $(BENCH_FLAGS)

# on the machine's own Python: .venv has torch for the CPU
gpu-check:
	'$(PYTHON)' -m benchmarks.gpu_check $(BENCH_FLAGS)

clean:
	rm -rf build dist docs/_build .nox .venv-dist .venv-docs *.egg-info data/demo work_dirs/demo configs/demo/*_recommended.py
	rm -rf work_dirs/bench_whole work_dirs/bench_whole_demo
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# The set-up: four steps, each with a stamp that is written last.
setup: $(VENV)/.package

$(VENV)/.python: requirements/check_host.sh
	@requirements/check_host.sh '$(PYTHON)'
	@echo 'Setting up $(VENV) (5 minutes, once): Python packages, torch among them ...'
	@'$(PYTHON)' -m venv $(VENV)
	@touch $@

$(VENV)/.requirements: $(VENV)/.python $(addprefix requirements/,build.txt demo.txt test.txt)
	@$(PIP_INSTALL) $(addprefix -r ,$(filter %.txt,$^)) || { echo "make: the pinned \
	packages could not be installed: is there a network, or a package index to name \
	with PIP_FLAGS='--index-url ...', and room on the disk?" >&2; exit 1; }
	@$(BIN)/python -c 'import cv2' || { echo "make: OpenCV does not load: the line above \
	names the system library that is missing" >&2; exit 1; }
	@touch $@

$(VENV)/.mmcv: $(VENV)/.requirements $(addprefix requirements/,mminstall.txt install_mmcv.sh build_mmcv.py)
	@requirements/install_mmcv.sh $(VENV) $(PIP_FLAGS)
	@touch $@

$(VENV)/.package: $(VENV)/.mmcv setup.py $(wildcard pyproject.toml) mmgpu_hooks/version.py
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

# Only for bench-overhead and bench-quick: the tools that it sets beside the hook.
$(VENV)/.bench: $(VENV)/.package requirements/bench.txt
	@$(PIP_INSTALL) -r requirements/bench.txt
	@touch $@
