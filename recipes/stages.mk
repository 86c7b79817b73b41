# Every recipe's stages, in the order data flows. A recipe sets TRAIN, DEV, TEST, RUNS and CONF and
# includes this. A script is called as `stage.py INPUT... OUTPUT`: it reads nothing that make does
# not know of, and writes its OUTPUT last, by renaming: if that exists, all it lists is there.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := table
.DELETE_ON_ERROR:
.SECONDARY: # keep every file; yet deleting a finished stage's bulky inputs reruns nothing
ROOT := $(abspath $(dir $(lastword $(MAKEFILE_LIST)))/..)
S    := $(ROOT)/scripts
EVAL := $(DEV) $(TEST)
PY   ?= $(or $(wildcard $(ROOT)/.venv/bin/python),python)
W    ?= work
SET   ?=
WORKERS ?= 1# that train together
VIRTUAL ?=# 1: all of them in one process; else one each
NPROC ?= $(if $(VIRTUAL),1,$(WORKERS))
START = $(PY) $(if $(filter-out 1,$(NPROC)),-m torch.distributed.run --standalone --nproc-per-node $(NPROC))
INPUTS ?=# files outside that the manifests are made from
CONF  ?=
# Settings files; a plan (-n) is made with a copy, so that asking cannot change what a make that runs
# at the same time reads, nor make anything stale.
PLANNED := $(and $(findstring n,$(filter-out --%,$(firstword -$(MAKEFLAGS)))),$(wildcard $W/conf))
C       := $W/$(if $(PLANNED),.plan$(shell rm -rf $W/.plan && cp -Rp $W/conf $W/.plan),conf)
# Files of the user's that lang reads, so that an edit counts.
LANG_FILES := $(wildcard $(foreach k,lexicon grammar,\
  $(patsubst lang.$k.file=%,%,$(filter lang.$k.file=%,$(CONF) $(SET)))))
export ASR_WORK := $W
export WORKERS
ifndef JOBS
JOBS := $(shell nproc)
endif
export JOBS
export OPENBLAS_NUM_THREADS := 1# the worker processes are the threads
# Training's threads sleep while they wait for each other: if they spin, as OpenMP's do else, and
# anything else wants a core (-j2, a second user), training takes ten times as long or more.
export OMP_WAIT_POLICY ?= PASSIVE

MODELS  := gmm $(RUNS)
SCORES  := $(foreach r,$(MODELS),$(EVAL:%=$W/exp/$r/score.%.json))
TARGETS := $(foreach s,$(TRAIN) $(EVAL),$W/manifests/$s.jsonl.gz) $W/lang/index.json \
  $(foreach s,$(TRAIN) $(EVAL),$W/feats/$s.jsonl.gz) $W/exp/gmm/model.json \
  $(foreach s,$(TRAIN) $(DEV),$W/ali/$s.jsonl.gz $W/shards/$s/index.json) \
  $(RUNS:%=$W/exp/%/model.json) $(MODELS:%=$W/exp/%/tuned.json) \
  $(foreach r,$(MODELS),$(EVAL:%=$W/exp/$r/hyp.%.jsonl)) $(SCORES) \
  $W/tables/wer.md $W/report/index.html

.PHONY: help table conf status clean
## In a recipe's folder, or from the root with RECIPE=NAME:
##   make table    the WER table and all it needs (-n: the plan; -j2: stages side by side)
##   make status   which stages are done, stale or missing, with their time and size
##   make clean    remove the work folder
##   variables     W=work folder  JOBS=processes a stage  SET='feats.num_mels=80 decode.beam=12'
##                 WORKERS=training workers, a process each; VIRTUAL=1: all in one, to the same bits
table: $W/report/index.html
	@cat $W/tables/wer.txt; echo "report: $W/report/index.html"
help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)
clean:
	@[ ! -e $W ] || [ -d $W/conf ] || { echo "$W has no conf/ in it, so it is no work folder; not removed" >&2; exit 1; }
	rm -rf $W

# One settings file a stage, rewritten only when its content changes: a stage reruns when its own
# numbers change. '+' runs these lines under -n too, so that the plan it prints is true.
conf:
	+@$(PY) $S/resolve.py $C '$(RUNS)' $(CONF) $(SET)
$C/%.yaml: conf ; +@:

$W/manifests/%.jsonl.gz: $C/corpus.yaml $C/lexicon.yaml $(INPUTS) $(LANG_FILES)
	$(PY) $S/manifests.py $(wordlist 1,2,$^) $@
$W/lang/index.json: $W/manifests/$(TRAIN).jsonl.gz $C/lang.yaml $(LANG_FILES)
	$(PY) $S/lang.py $(wordlist 1,2,$^) $@
$W/feats/%.jsonl.gz: $W/manifests/%.jsonl.gz $C/feats.yaml ; $(PY) $S/feats.py $^ $@
# The Gaussian mixtures are a run like any other; the network learns from their alignments.
$W/exp/gmm/model.json: $W/feats/$(TRAIN).jsonl.gz $W/lang/index.json $C/ali.yaml
	$(PY) $S/gmm.py $^ $@
$W/ali/%.jsonl.gz: $W/feats/%.jsonl.gz $W/lang/index.json $W/exp/gmm/model.json $C/ali.yaml
	$(PY) $S/ali.py $^ $@
$W/shards/%/index.json: $W/feats/%.jsonl.gz $W/ali/%.jsonl.gz $C/shards.yaml
	$(PY) $S/shards.py $^ $@
# Goes on from the run's newest checkpoint; model.json is the last thing it writes.
$W/exp/%/model.json: $W/shards/$(TRAIN)/index.json $W/shards/$(DEV)/index.json $C/run/%.yaml
	$(START) $S/train.py $^ $@
# Scales are chosen on DEV alone; TEST only meets the choice, and needs no alignment.
$W/exp/%/tuned.json: $W/exp/%/model.json $C/decode.yaml $W/lang/index.json \
  $W/feats/$(DEV).jsonl.gz
	$(PY) $S/tune.py $^ $@

define eval_rules # $1 is the split; the pattern is the run
$W/exp/%/hyp.$1.jsonl: $W/exp/%/model.json $W/exp/%/tuned.json $W/lang/index.json $W/feats/$1.jsonl.gz
	$$(PY) $S/decode.py $$^ $$@
$W/exp/%/score.$1.json: $W/exp/%/hyp.$1.jsonl $W/manifests/$1.jsonl.gz $C/score.yaml
	$$(PY) $S/score.py $$^ $$@
endef
$(foreach s,$(EVAL),$(eval $(call eval_rules,$s)))
# A pattern as well: .SECONDARY would have make look through a settings file that a rule names in
# full, find that its prerequisite `conf` is no file, and score everything again.
$W/tables/%.md: $C/score.yaml $(SCORES) ; $(PY) $S/tables.py $^ $@
$W/report/index.html: $W/tables/wer.md $W/ali/$(DEV).jsonl.gz $(RUNS:%=$W/exp/%/model.json)
	$(PY) $S/report.py $W/tables/wer.json $W/ali/$(DEV).report.json $(RUNS:%=$W/exp/%/log.jsonl) $@

# What to call, from the root, to have all done.
status: export ASR_GOAL := $(notdir $(CURDIR)) $(filter-out RECIPE=%,$(MAKEOVERRIDES))
status:
	@mkdir -p $W && $(MAKE) -n table > $W/.status
	@$(PY) $S/status.py $W/.status $(TARGETS); rm -rf $W/.status $W/.plan
