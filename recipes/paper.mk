# A paper's tables, from runs of its own. A folder of recipes/ with paper.yaml and one file per table
# includes this; the stages are those of CORPUS's recipe. Tables with
# `estimated: true` come from the cost model alone, in seconds: nothing is trained, and SCALE has no effect.
ROOT   := $(abspath $(dir $(lastword $(MAKEFILE_LIST)))/..)
include $(ROOT)/recipes/paths.mk
SCALE  ?= small
$(if $(filter $(SCALE),tiny small medium full),,$(error SCALE is '$(SCALE)'; it may be tiny, small, medium or full))
# The corresponding SIZE of the corpus's recipe
SIZE_OF_tiny  := tiny
SIZE_OF_small := default
SIZE_OF_medium := large
SIZE_OF_full  := large
SIZE  ?= $(SIZE_OF_$(SCALE))
SEEDS  ?=# of every row, instead of those in the tables' files
SCALE_SEEDS := $(subst $(space),:,$(strip $(SCALE) $(SEEDS)))
CORPUS ?= commands
ifeq ($(wildcard $(ROOT)/recipes/$(CORPUS)/Makefile),)
$(error CORPUS is '$(CORPUS)', but recipes/ has no such recipe; it may be commands, digits, librispeech, ...)
endif
export CORPUS
DIVERGED ?= keep# a run that diverges is a row, too; see scripts/train.py
export DIVERGED
# Networks learn the alignments of the last of GMMS, once; for the tables in results/ that was tri.
ifeq ($(CORPUS),commands)
GMMS   ?= mono tri
# 30,000 words, of commands' 60 voices: a difference of 2 % relative is visible.
TEST_HOURS ?= $(if $(filter tiny,$(SCALE)),,2.6)
endif
# SCALE=tiny makes only the paper's own by default, so that it takes minutes
OWN_TABLES := $(if $(filter tiny,$(SCALE)),table% figure% estimates,%)
$(foreach v,HUMAN TEST_HOURS,$(if $(and $(filter-out commands,$(CORPUS)),$(filter $v,$(GIVEN))),$(error $v is for \
  CORPUS=commands, but CORPUS is $(CORPUS); leave it out)))
# CONDITIONS_TABLE: the test sets of a table that has several, of those that only commands has
CONDITIONAL := $(patsubst CONDITIONS_%,%,$(filter CONDITIONS_%,$(.VARIABLES)))
ALL_TABLES := $(filter-out paper $(if $(filter commands,$(CORPUS)),,$(CONDITIONAL)),$(basename $(notdir $(wildcard $(CURDIR)/*.yaml))))
TABLES ?= $(or $(filter $(OWN_TABLES),$(ALL_TABLES)),$(ALL_TABLES))
ifeq ($(strip $(TABLES)),)
$(error TABLES is empty, so that there is nothing to make; it may be $(ALL_TABLES))
endif
W      ?= work-$(SCALE)$(addprefix -,$(filter-out commands,$(CORPUS)))
PAPER  := $(notdir $(CURDIR))
PY     ?= $(or $(wildcard $(ROOT)/.venv/bin/python),python)
PARALLEL   ?= $(shell nproc)# runs trained in parallel, one thread each
ESTIMATED := $(filter $(TABLES),$(notdir $(basename $(shell grep -l '^estimated: true' $(CURDIR)/*.yaml))))
TRAINED := $(filter-out $(ESTIMATED),$(TABLES))
NAMED  := $(foreach t,$(TRAINED),$(eval NAMED_$t := $$(shell $$(PY) $$(ROOT)/scripts/rows.py '$$(SCALE_SEEDS)' $$(CURDIR)/$t.yaml))$(NAMED_$t))
ifneq ($(and $(TRAINED),$(if $(strip $(NAMED)),,none)),)
$(error no runs; see the error above)
endif
# Runs that have a record in the folder RECORDS are not trained.
RECORDS ?=
$(call one_word,RECORDS,$(RECORDS),name a folder without one)
ifeq ($(if $(RECORDS),$(wildcard $(call from_root,$(RECORDS))/.),none needed),)
$(error RECORDS is $(RECORDS), but $(call from_root,$(RECORDS)) is no folder; leave it out to train all runs)
endif
# Tables are copied to the folder RESULTS.
RESULTS ?=
$(call one_word,RESULTS,$(RESULTS),name a folder without one)
COPIES = $(call from_root,$(RESULTS))
ifneq ($(and $(RESULTS),$(wildcard $(COPIES)),$(if $(wildcard $(COPIES)/.),,file)),)
$(error RESULTS is $(RESULTS), but $(COPIES) is no folder; name a folder, which need not exist)
endif
RECORDED := $(if $(RECORDS),$(filter $(basename $(notdir $(wildcard $(call from_root,$(RECORDS))/*.jsonl))),$(NAMED)))
to_train = $(filter-out $(RECORDED) $(RECORDED:%=%/epochs/%),$1)
FILES  := $(TRAINED:%='$(CURDIR)/%.yaml@$(SCALE_SEEDS)')
EPOCHS := $(foreach n,$(sort $(NAMED)),$(if $(findstring /epochs/,$n),$n))
RUNS   := $(sort $(patsubst %-realign1,%,$(filter-out $(EPOCHS),$(NAMED))))
REALIGN := $(if $(filter %-realign1,$(NAMED)),1,0)# rules only: a table names the runs it needs
CONDITIONS := $(filter-out human,$(sort $(foreach t,$(filter $(CONDITIONAL),$(TABLES)),$(CONDITIONS_$t))))
ifneq ($(and $(CONDITIONS),$(filter-out commands,$(CORPUS))),)
$(error $(filter $(CONDITIONAL),$(TABLES)) has test sets that only CORPUS=commands has, but CORPUS is $(CORPUS); leave CORPUS out)
endif
tests_of = $(if $(filter $1,$(CONDITIONAL)),$(CONDITIONS_$1:%=test_%),$(firstword $(TEST)))# of a table
# The baseline's acoustic scale, for every row; those of its record are in a folder of their own.
BASE   := $(firstword $(NAMED))
SCALES := $(BASE)$(if $(filter $(BASE),$(RECORDED)),-recorded)
VIRTUAL ?= 1
GOAL   := paper
$(foreach v,SEQUENCE BIGRAM PRONPROBS RESCORE,$(if $(filter command,$(firstword $(origin $v))),$(error $v adds models \
  that no table of a paper has; call make $(CORPUS) with it)))
ifneq ($(TRAINED),)
include ../$(CORPUS)/Makefile
else
TRAIN  := train
DEV    := dev
TEST   := test
include $(ROOT)/recipes/stages.mk
$(foreach v,SET SEEDS,$(if $(strip $($v)),$(error $v is '$($v)', but nothing is trained for $(TABLES), so that it has no \
  effect; leave it out)))
endif

## In a paper's folder, or from the root as `make PAPER` and `make PAPER-TABLE`:
##   SCALE=tiny, small, medium, full    TABLES='table2 figure1'    CORPUS=recipe whose speech to use
##                              (default: all; tiny: only the paper's own)
##   SEEDS='1 2'                of all rows, instead of those in the tables' files: SEEDS=1 takes the least time
##   PARALLEL=runs trained at once   RESULTS=folder to copy the tables, and the records of their runs, to
##   RECORDS=folder of records: these runs are not trained (results/PAPER/records, or another machine's)
##   SET='optim.max_norm=1'     settings that the paper's runs do not set themselves
##   DIVERGED=stop              stop where a run diverges (default: finish it with its last sound checkpoint)
##   DRY_RUN=1                  a few steps of each run on random frames instead: seconds, memory, hours per row
##                              with PASS_HOURS=hours of speech per epoch (default: the scale's)
.PHONY: paper paper-tables
DRY_RUN ?=
PASS_HOURS_OF_tiny := 0.15
PASS_HOURS_OF_small := 3.1
PASS_HOURS_OF_medium := 24
PASS_HOURS_OF_full ?= 1000# of the paper
PASS_HOURS ?= $(PASS_HOURS_OF_$(SCALE))
RECORDS_MADE = $(patsubst %,$W/tables/records/%.jsonl,$(sort $(filter-out $(EPOCHS),$(call to_train,$(NAMED)))))
MADE := $(TABLES:%=$W/tables/$(PAPER)-%.md)
RATIOS := $(TRAINED:%=$W/tables/$(PAPER)-%.ratios.json)
# What `make status` lists.
TARGETS := $(if $(TRAINED),$(filter $W/manifests/% $W/lm/% $W/lang/% $W/feats/% $W/ali/$(ALIGNER)/% $W/shards/% \
  $(patsubst %,$W/exp/%/model.json,$(call to_train,$(NAMED))),$(TARGETS)) $(if $(call to_train,$(NAMED)),$W/exp/$(SCALES)/tuned.json) \
  $(sort $(foreach t,$(TRAINED),$(foreach r,$(call to_train,$(NAMED_$t)),$(foreach s,$(call tests_of,$t),$(addprefix $W/exp/$r/,hyp.$s.jsonl score.$s.json)))))) \
  $(MADE)
# First the stages that all runs share, with every core; then the check of the ratios; then the runs, in parallel.
# A plan (-n) asks only the last of these, which needs the others: it would list their stages again.
AHEAD := $(and $(TRAINED),$(if $(PLANNING),,true))
ifneq ($(filter-out 0,$(DRY_RUN)),)
paper:
	@mkdir -p $W/tables
	@$(foreach t,$(TRAINED),$(PY) $S/dry_run.py '$(SCALE_SEEDS)' $(CURDIR)/$t.yaml $(PASS_HOURS) $W/tables/$(PAPER)-$t.dry-run.md && \
	  cat $W/tables/$(PAPER)-$t.dry-run.md && ) true
	@$(if $(ESTIMATED),echo "nothing is trained for $(ESTIMATED)")
else
paper:
	$(if $(RESULTS),@mkdir -p $(COPIES)$(if $(TRAINED),/records))
	$(if $(AHEAD),+@$(MAKE) $(CHECKED) $(foreach s,$(TRAIN) $(DEV),$W/shards/$(ALIGNER)/$s/index.json) $(TEST:%=$W/feats/%.jsonl.gz))
	$(if $(AHEAD),+@$(MAKE) $(RATIOS))
	+@$(MAKE) -j$(PARALLEL) JOBS=1 paper-tables
	@cat $(MADE:.md=.txt); echo "tables and pictures: $W/tables"
	$(if $(RESULTS),@for t in $(TABLES); do for e in md json png; do \
	  cp $W/tables/$(PAPER)-$$t.$$e $(COPIES)/$$t.$$e; done; done; \
	  $(if $(strip $(RECORDS_MADE)),cp $(RECORDS_MADE) $(COPIES)/records))
endif
paper-tables: $(MADE) ; @:

ifneq ($(filter %-recorded,$(SCALES)),)
$W/exp/$(SCALES)/tuned%json: $W/exp/$(firstword $(call to_train,$(filter-out $(EPOCHS),$(NAMED))))/model.json \
  $C/decode.yaml $C/normaliser.yaml $W/lang/index.json $W/feats/$(DEV).jsonl.gz $(call from_root,$(RECORDS))/$(BASE).jsonl
	$Q$(PY) $S/tune.py $^ $@
endif
# What the papers print, and the clusters that are simulated
PRINTED := $(wildcard $(ROOT)/conf/papers/*.yaml $(ROOT)/conf/cluster/*.yaml)
records_of = $(patsubst %,$(call from_root,$(RECORDS))/%.jsonl,$(filter $(RECORDED),$(NAMED_$1)))
# $1 is the table. Patterns have the dot of its name: table2% would also be table2_relu
define paper_rule
$W/tables/$(PAPER)-$1.ratios%json: $(CURDIR)/$1.yaml $W/shards/$(ALIGNER)/$(TRAIN)/index.json $(CURDIR)/paper.yaml \
  $(foreach n,$(NAMED_$1),$(if $(findstring /epochs/,$n),,$C/run/$(n:%-realign1=%).yaml)) \
  $(call records_of,$1) $C/recorded.yaml
	$Q$$(PY) $$S/ratios.py '$$(SCALE_SEEDS)' $$(wordlist 1,2,$$^) $$C/run $(call records_of,$1) $$@
$W/tables/$(PAPER)-$1.m%: $(CURDIR)/$1.yaml $W/tables/$(PAPER)-$1.ratios.json $C/score.yaml $C/decode.yaml \
  $(CURDIR)/paper.yaml $W/shards/$(ALIGNER)/$(TRAIN)/index.json $(call records_of,$1) \
  $(foreach r,$(call to_train,$(NAMED_$1)),$W/exp/$r/model.json $(patsubst %,$W/exp/$r/score.%.json,$(call tests_of,$1))) \
  $C/recorded.yaml $(PRINTED)
	$Q$$(PY) $$S/paper.py '$$(SCALE_SEEDS)' $$(wordlist 1,4,$$^) $$C/run $$(word 6,$$^) $$W/exp $(call records_of,$1) $$@
endef
$(foreach t,$(TRAINED),$(eval $(call paper_rule,$t)))
$(ESTIMATED:%=$W/tables/$(PAPER)-%.md): $W/tables/$(PAPER)-%.md: $(CURDIR)/paper.yaml $(CURDIR)/%.yaml $(PRINTED)
	$Q$(PY) $S/estimate.py $(wordlist 1,2,$^) $@
