# `make demo` and `make test` set up .venv by themselves, once; `make help` lists everything.

PYTHON ?= $(shell for p in python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.tunelight-setup
HOROVOD_STAMP := $(VENV)/.tunelight-horovod
BENCHMARKS := turnaround leak strategies gpu chaos recovery pbt schedulers fidelity search reporting scale heads data nodes ready web leaving tune_up
# Of these `make test-more` runs no short mode, which takes minutes; the nightly workflow does, by `make bench-short LONG=`.
LONG ?= recovery leaving pbt data nodes strategies fidelity gpu search chaos-cluster turnaround-peers
# Of these there is no whole run but on a GPU: `make gpu`.
ON_GPUS := gpu
SHORT := $(BENCHMARKS) chaos-cluster turnaround-peers record_curves
# Each is `NAME.py --short`, but for these.
SHORT_chaos-cluster := chaos.py --cluster
SHORT_turnaround := turnaround.py --only a,b,f
SHORT_turnaround-peers := turnaround.py --only c,d,g
# Of a file all tests run in one process.
PYTEST := $(BIN)/python -m pytest --dist loadfile
# Those with Ray. Two processes at a time, each with a Ray of its own: they wait more than they compute. In this order,
# for the longest test would else come last, when nothing is left for the other process.
TESTS := --no-loadscope-reorder tests/differential tests/chaos tests/cluster tests/integration
# The unit tests start none, and share the cores.
UNIT := $(PYTEST) -n 2 tests/unit
# Where tests with a mark are: to import all the others takes each process of pytest ten seconds.
marked = $(shell grep -rl --include='test_*.py' 'mark\.$(1)' tests)
# The tests for GPUs, so that they do not rot where there is none.
ON_CPUS := TUNELIGHT_GPU_TESTS=cpu

# Bytecode is kept, whatever the environment says: hundreds of processes would compile the package, each for itself.
unexport PYTHONDONTWRITEBYTECODE

# Two parts at once would share this machine's cores, and the benchmarks would measure each other.
.NOTPARALLEL:
.PHONY: differential world help setup horovod demo test test-more apart test-full unit browser gpu lint format bench bench-short matrix matrix-short audit sbom docs site reference dist wheel-test clean distclean

help:
	@echo "make demo       set up, then run the digits sweep (20 trials of 2 workers) and write best.yaml"
	@echo "make test       set up, Horovod too, then lint and all tests but those of test-more and the slow ones"
	@echo "make test-more  tests with the oldest versions of all and the other Lightning, the benchmarks' short modes, programs"
	@echo "                with a Ray of their own, the wheel, and the pages in a browser where there is one"
	@echo "make test-full  everything, with whole benchmarks and the slow tests"
	@echo "make unit       the unit tests only (no Ray), but for the slow ones"
	@echo "make browser    the report and the live page in headless Chromium: TUNELIGHT_BROWSER, one on PATH, or one that is"
	@echo "                fetched from Debian's or Ubuntu's packages and not installed"
	@echo "make gpu        what needs a GPU: tests and benchmarks; without one their short modes on CPUs"
	@echo "make differential  N=500 random programs, each trained by Lightning's DDP and by tunelight"
	@echo "                (SEED=; EACH=2: in how many ways; LIGHTNING=lightning: with that package)"
	@echo "make world      sweeps on virtual time to which everything happens (FOR=3600: seconds; SEED=)"
	@echo "make lint       ruff and mypy"
	@echo "make format     let ruff rewrite what it can"
	@echo "make horovod    install Horovod into .venv, built from source the first time (a C++ compiler, some minutes)"
	@echo "make bench      the benchmarks, and their figures into docs/measurements.md (ONLY='leak ready': some of them)"
	@echo "make matrix     tests with other versions of Ray, Lightning, Python and the rest (some GB in build/matrix;"
	@echo "                ROWS=ray-2.49,pre-releases: these)"
	@echo "make matrix-short  the oldest versions only, with fewer tests"
	@echo "make audit      zizmor and actionlint on .github, and known vulnerabilities of constraints.txt"
	@echo "make sbom       what the wheel in dist/ brings with it, as CycloneDX, into build/tunelight.cdx.json"
	@echo "make docs       the site, into build/docs (open build/docs/index.html)"
	@echo "make site       the same as one version of several, on the branch gh-pages (VERSION=0.3)"
	@echo "make reference  write docs/settings.md, docs/commands.md, the schemas and the conda recipe"
	@echo "make dist       the wheel and the sdist, into dist"
	@echo "make wheel-test install the wheel in dist into a new environment, and run there what a first reader types"
	@echo "make clean      remove caches and built files (sweeps and .venv stay)"
	@echo "make distclean  remove .venv too"

# Installed again only when what was asked for changed.
$(STAMP): pyproject.toml constraints.txt scripts/install.py
	@test -n "$(PYTHON)" || { \
		echo "tunelight needs Python 3.11 or newer, and found none; name one: make PYTHON=/path/to/python" >&2; \
		exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@# torch by its plain version: a CPU build is then taken where pip is offered one.
	$(BIN)/python scripts/install.py --quiet -c constraints.txt -e '.[dev,demo]'
	@touch $@

setup: $(STAMP)

# Built once for each torch and Python, and taken from the wheel cache from then on. After setup, for setup may bring
# another torch; the demo does without it, and so without a compiler.
$(HOROVOD_STAMP): $(STAMP) scripts/build_horovod.sh
	scripts/build_horovod.sh $(BIN)/python
	@touch $@

horovod: $(HOROVOD_STAMP)

demo: setup
	$(BIN)/python examples/digits_asha.py --storage runs --export best.yaml

# Horovod first, which unit tests need too: its build takes all cores. Then side by side what takes one.
test: setup horovod
	printf '%s\n' lint unit | xargs -P 2 -I PART $(MAKE) PART
	$(ON_CPUS) $(PYTEST) -n 2 -m "not slow and not apart" $(TESTS) tests/gpu

# What few changes break. Side by side what waits for packages, and programs of their own; what pytest prints comes last.
test-more: setup horovod
	printf '%s\n' matrix-short 'bench-short apart' | xargs -P 2 -I PARTS sh -c '$(MAKE) PARTS'
	@if scripts/chromium.sh >/dev/null; then $(MAKE) browser OF="browser and not slow"; else \
		echo "The tests in tests/browser were NOT run: no Chromium can be had here (see above)."; fi

# Programs with Rays of their own, three at a time: each waits most of its time for processes to start.
apart: setup
	$(PYTEST) -n 3 -m "apart and not slow" $(call marked,apart)

test-full: setup horovod lint bench browser
	$(UNIT)
	$(UNIT) --lightning lightning
	$(PYTEST) -n 2 --lightning lightning $(TESTS)
	$(ON_CPUS) $(PYTEST) -n 2 $(TESTS) tests/gpu

unit: setup
	$(UNIT) -m "not slow"

# `test-more` runs it where a Chromium can be had, and says so where not.
browser: setup
	TUNELIGHT_BROWSER="$$(scripts/chromium.sh)" $(BIN)/python -m pytest -n 2 -m "$(or $(OF),browser)" tests/browser

# In parts of less than ten minutes. `scripts/gpu.sh python3` does without .venv, with what is installed there.
gpu: setup
	scripts/gpu.sh $(BIN)/python

# A program takes one to three seconds in most ways; those that differ are shrunk, which takes minutes.
N ?= 100
SEED ?= 0
EACH ?= 2
LIGHTNING ?= pytorch_lightning
differential: horovod
	$(BIN)/python -m tests.differential --number $(N) --seed $(SEED) --each $(EACH) --lightning $(LIGHTNING) --shrink

# Sweeps on virtual time to which everything happens, on two cores.
FOR ?= 60
world: setup
	printf '%s\n' 0 500000 | xargs -P 2 -I FROM sh -c \
		'$(BIN)/python -m tests.world --seconds $(FOR) --seed $$(($(SEED) % 100000 * 1000000 + FROM)) 2>/dev/null'

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python benchmarks/all.py $(if $(ONLY),--only $(ONLY))

# Four at a time: in a short run nothing is measured, and most of it waits for processes to start. The longest come first.
bench-short: setup
	printf '%s\n' $(foreach NAME,$(filter-out $(LONG),$(SHORT)),'$(or $(SHORT_$(NAME)),$(NAME).py)') | \
		xargs -P 4 -I NAME sh -c '$(BIN)/python benchmarks/NAME --short || { echo "benchmarks/NAME --short failed"; exit 1; }'

# Environments of their own, made once each: scripts/matrix.py says how, and docs/versions.md what came of it.
matrix: setup
	$(BIN)/python scripts/matrix.py $(if $(ROWS),--rows $(ROWS))

matrix-short: setup
	$(BIN)/python scripts/matrix.py --short

# Tools of an environment of their own, for they need nothing of tunelight's.
TOOLS := build/tools
$(TOOLS)/ready: .github/tools.txt scripts/install.py
	$(PYTHON) -m venv --clear $(TOOLS)
	$(TOOLS)/bin/python scripts/install.py --quiet -r .github/tools.txt
	@touch $@

# `strict`, for a package that no advisory service knows passes otherwise.
audit: $(TOOLS)/ready
	$(TOOLS)/bin/zizmor --no-progress .github
	@if $(TOOLS)/bin/python scripts/install.py --quiet -r .github/actionlint.txt; then \
		PATH="$(TOOLS)/bin:$$PATH" $(TOOLS)/bin/actionlint; \
	elif [ -n "$$CI" ]; then exit 1; else \
		echo "actionlint was NOT run: its package fetches it from github.com, which cannot be reached (see above)."; fi
	$(TOOLS)/bin/pip-audit --strict --progress-spinner off --disable-pip --no-deps -r constraints.txt

# Installed as a user does, so that torch brings what pip takes for this machine.
sbom: $(TOOLS)/ready
	$(PYTHON) -m venv --clear --without-pip build/sbom
	$(TOOLS)/bin/python -m pip --python build/sbom/bin/python install --quiet dist/*.whl
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible --validate \
		--output-file build/tunelight.cdx.json build/sbom/bin/python

# The variable keeps a banner on the theme's future out of the output.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Beside those of other versions, in a commit on the branch gh-pages of this clone; nothing is pushed.
site: setup
	@test -n "$(VERSION)" || { echo "Say of which version: make site VERSION=0.3" >&2; exit 1; }
	@# mike calls mkdocs by its name.
	PATH="$(abspath $(BIN)):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/mike deploy --update-aliases $(VERSION) latest
	$(BIN)/mike set-default latest

reference: setup
	$(BIN)/python scripts/reference.py
	$(BIN)/python scripts/recipe.py

# The wheel is built of the sdist. Without isolation hatchling is the pinned one: a commit gives the same bytes again.
# What is published is built with little, and with what was read before: not with all that tests need.
dist:
	rm -rf dist
	$(PYTHON) -m venv --clear build/builder
	build/builder/bin/python -m pip install --quiet --require-hashes --only-binary :all: -r .github/build.txt
	build/builder/bin/python -m build --no-isolation

wheel-test: setup
	TUNELIGHT_DIST=dist $(BIN)/python -m pytest tests/integration/test_wheel.py

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
