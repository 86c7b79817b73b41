# From recordings to a word error rate: `make digits`. Sets up .venv by itself; a recipe's own
# stages are in recipes/stages.mk.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

include recipes/paths.mk
$(foreach v,CORPUS_DIR W,$(if $($v),$(call one_word,$v,$($v),name a link to it without one)))
PYTHON ?= python3# 3.11 or newer (tested with 3.11 and 3.12), to make .venv with
UV_VERSION := 0.13.8
BIN := $(CURDIR)/.venv/bin
export PATH := $(BIN):$(PATH)
PAPERS := $(notdir $(patsubst %/paper.yaml,%,$(wildcard recipes/*/paper.yaml)))
RECIPES := $(filter-out $(PAPERS),$(notdir $(patsubst %/Makefile,%,$(wildcard recipes/*/Makefile))))
RECIPE ?= digits
$(if $(filter $(RECIPE),$(RECIPES) $(PAPERS)),,$(error RECIPE is '$(RECIPE)'; it may be $(RECIPES) $(PAPERS)))
# A recipe is a goal; RECIPE is for the goals of all of them
NAMES_RECIPE := $(filter $(RECIPES) $(PAPERS) $(PAPERS:%=%-%),$(filter-out $(RECIPE) $(RECIPE)-%,$(MAKECMDGOALS)))
ifneq ($(and $(filter RECIPE,$(GIVEN)),$(NAMES_RECIPE),$(if $(filter check bundle status clean,$(MAKECMDGOALS)),,none)),)
$(error RECIPE is '$(RECIPE)', but the goal is $(firstword $(NAMES_RECIPE)), which names its recipe; call `make $(RECIPE)`, or leave \
  RECIPE out)
endif
# Folders named on the command line count from here; make hands on all other variables by itself.
FOLDERS = $(foreach v,CORPUS_DIR W MORE DEV_DIR TEST_DIRS BUNDLE,$(if $($v),'$v=$(abspath $($v))'))

FETCH := fsdd speechocean mini_librispeech librispeech an4 yesno

.PHONY: help $(RECIPES) $(PAPERS) check bundle status clean report docs test test-all lint format lock bench bench-step gpu gpu-wheels plan $(FETCH:%=fetch-%)

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST) recipes/stages.mk

## make digits                     spoken digits, synthesised on the fly: the whole pipeline, no download
## make commands                   sentences of 3,000 words, synthesised on the fly (HOURS=10)
## make fsdd CORPUS_DIR=path       real digits of six speakers (make fetch-fsdd downloads them)
## make folder CORPUS_DIR=path     your own recordings: a folder with utterances.tsv
##   DEV_DIR=path TEST_DIRS=path   folders to tune and to test on (default: a share of CORPUS_DIR's speakers)
##   MORE='path path'              more folders to train on (folder, commands, speechocean, arctic, ...)
## make NAME CORPUS_DIR=path       any recipe of recipes/; its README describes data, licence and cost
## make check CORPUS_DIR=path      only check the recordings (RECIPE=fsdd: as that recipe would)
## make bundle RECIPE=fsdd         pack its model for decoding and alignment anywhere (RUN=dnn, BUNDLE=path)
## make status RECIPE=fsdd         list done, stale and missing stages (default: digits)
## make clean RECIPE=fsdd          remove that recipe's work folder
## make ddp_hook                   GTC, 1-bit SGD and block momentum in a plain PyTorch script; no data
$(RECIPES) $(PAPERS) check: | $(filter fetch-%,$(MAKECMDGOALS))
$(RECIPES): .venv/.ready
	@$(MAKE) -C recipes/$@ table $(FOLDERS)

## make strom2015                  a paper's tables and figures beside ours: strom2015, ladkat2019
## make strom2015-table3           one of these (table2, table3, table4, figure1; table1, ...)
##   SCALE=tiny, small, medium, full   minutes; a night on 2 cores (default); 24 hours of speech, for a
##                                 GPU; the paper's own sizes, for a corpus of 1,000 hours
##   CORPUS=a recipe               whose speech to use (default: commands)
##   RESULTS=folder                copy the tables there, and a record of each run to folder/records
##   RECORDS=folder                read these records instead of training the runs again
##   DRY_RUN=1                     a few steps of each run on random frames: seconds, memory, hours per row
## make seide2014_1bit             also seide2014_parallelizability; -table1, -table4, -table5 and -estimates are
##                                 simulated in seconds, the others train
$(PAPERS): .venv/.ready
	@$(MAKE) -C recipes/$@ paper $(FOLDERS)
# A rule for each: make takes all patterns of one rule, with the same stem, for made at once
define table_rule # $1 is the paper
$1-%: .venv/.ready
	@$$(MAKE) -C recipes/$1 paper TABLES=$$* $$(FOLDERS)
endef
$(foreach p,$(PAPERS),$(eval $(call table_rule,$p)))

check: .venv/.ready
	@$(MAKE) -C recipes/$(if $(CORPUS_DIR),$(RECIPE:digits=folder),$(RECIPE)) $@ $(FOLDERS)
status clean bundle: .venv/.ready
	@$(MAKE) -C recipes/$(RECIPE) $@ $(FOLDERS)

## make report                     all tables, of your runs and of results/, in report/index.html
report: .venv/.ready
	@mkdir -p report && $(BIN)/python scripts/gather.py $(CURDIR) report/index.html

## make fetch-fsdd                 download the Free Spoken Digit Dataset into data/fsdd; also
##                                 speechocean, mini_librispeech, librispeech (PARTS='dev-clean ...',
##                                 LMS='3-gram.pruned.1e-7 4-gram'), an4, yesno
$(FETCH:%=fetch-%): fetch-%: .venv/.ready
	@$(BIN)/python scripts/fetch.py $* $(or $(CORPUS_DIR),data/$*)

## make docs                       build the documentation as a site, in site/index.html; no network
docs: .venv/.ready
	@$(BIN)/sphinx-build -q -E -W --keep-going -c docs -d build/doctrees . site
	@echo "documentation: $(CURDIR)/site/index.html"

## make test                       run all tests except slow ones (whole recipes, launchers, kill and resume)
## make test-all                   run all tests
test: .venv/.ready
	@$(BIN)/python -m pytest $(BESIDE) -m 'not slow'
test-all: .venv/.ready
	@$(BIN)/python -m pytest $(BESIDE) --durations=25 --durations-min=5
# Test files run in parallel, each in one process (fixtures are shared), long ones first. One process more
# than cores, because tests of timeouts wait; at most four.
BESIDE := -n $(shell n=$$(nproc); echo $$((n < 4 ? n + 1 : 4))) --dist loadfile --no-loadscope-reorder

## make lint                       run ruff and mypy (format: reformat with ruff)
lint: .venv/.ready
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
format: .venv/.ready
	@$(BIN)/ruff check --fix-only -q . ; $(BIN)/ruff format .

# uv inside for speed; the packages are those of the lock file, checked by their hashes.
.venv/.ready: requirements.lock pyproject.toml
	+@$(if $(findstring n,$(filter-out --%,$(firstword -$(MAKEFLAGS)))),[ -x $(BIN)/python ] || { echo "a plan (-n) needs .venv; set it up by: make .venv/.ready" >&2; exit 1; })
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not installed; install Python 3.11 or newer, or call make with PYTHON=path" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else "Python %d.%d is too old; install 3.11 or newer, or call make with PYTHON=path" % v)'
	@echo "setting up .venv (once, about 5 GB of packages)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --disable-pip-version-check uv==$(UV_VERSION)
	@VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install -q --require-hashes -r requirements.lock
	@VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install -q --no-deps --no-build-isolation -e .
	@touch $@

## make bench                      benchmark the kernels against a copy and other libraries (CPU: 3 minutes)
## make bench-step                 time training steps of SGD and GTC; RESULTS=results/cpu (or gpu)
# torch decides, because it measures: nvidia-smi may be there although torch finds no GPU
has_gpu = $(filter True,$(shell $1 -c 'import torch; print(torch.cuda.is_available())'))
RESULTS ?= results/$(if $(call has_gpu,$(BIN)/python),gpu,cpu)
bench: .venv/.ready
	@to=$(RESULTS); mkdir -p $$to; $(BIN)/python scripts/bench_kernels.py $$to
bench-step: .venv/.ready
	@to=$(RESULTS); mkdir -p $$to; $(BIN)/python scripts/bench_step.py $$to

## make gpu                        tests and benchmarks for a GPU: kernels, steps, runs of two papers, in pieces
##                                 of 8 minutes that resume, into results/gpu; PIECE=b: repeat one piece
##   SHARDS=folder                 ready shards of 20 mel bins in train/ and dev/, in place of synthesised speech
##   HOURS=8 LIMIT=480             hours of that speech; seconds of a piece
##   PY=python3                    without .venv: with torch, Triton, scipy, ... (docs/kernels.md), and wheels in .wheels
## make gpu-wheels                 download these wheels (Python 3.12, Linux), for a machine without a network
GPU_WORK ?= work-gpu
GPU_PY = $(or $(PY),$(BIN)/python)
gpu: $(if $(PY),,.venv/.ready)
	@PYTHONPATH=. $(GPU_PY) scripts/gpu.py $(if $(call has_gpu,$(GPU_PY)),results,build)/gpu $(GPU_WORK) $(PIECE)
gpu-wheels: .venv/.ready
	@$(BIN)/python scripts/gpu_wheels.py requirements.lock .wheels

## make plan CLUSTER=p3.16xlarge MODEL=lstm_5x768 WORKERS=128
##                                 recommend method, block and group size: simulated frames/s, bytes,
##                                 crossovers, K-hat, in plan/ (clusters: conf/cluster/; model: docs/cost.md;
##                                 all options: .venv/bin/asr-train plan -h)
plan: .venv/.ready
	@$(BIN)/python -m asr_train plan out=plan $(foreach v,$(filter-out PYTHON V DEBUG JOBS,$(GIVEN)),$(shell echo $v | tr A-Z a-z)='$($v)')

## make lock                       update the pinned packages in requirements.lock
lock: .venv/.ready
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-annotate --upgrade --extra dev --custom-compile-command 'make lock' pyproject.toml -o requirements.lock
