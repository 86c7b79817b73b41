# Every recipe's stages, in the order data flows. A recipe sets TRAIN, DEV, TEST, GMMS, RUNS and
# CONF and includes this. CONF holds recipe=NAME, which picks the numbers in conf/recipe/NAME.yaml, and
# settings that name files or come from variables of make. A script is called as `stage.py INPUT... OUTPUT`
# and writes its OUTPUT last, by renaming: if that exists, all it lists is there.
include $(dir $(lastword $(MAKEFILE_LIST)))paths.mk
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules --no-print-directory
GOAL ?= table
.DEFAULT_GOAL := $(GOAL)
.DELETE_ON_ERROR:
.SECONDARY: # keep every file; yet deleting a finished stage's bulky inputs reruns nothing
S    := $(ROOT)/scripts
EVAL := $(DEV) $(TEST)
PY   ?= $(or $(wildcard $(ROOT)/.venv/bin/python),python)
W    ?= work
$(call one_word,W,$W,name a folder without one)
$(if $(filter-out / $(ROOT) $(CURDIR),$(abspath $W)),,$(error W is '$W'; name a folder that holds nothing else, or leave W out))
SET   ?=
export ASR_SET := $(value SET)# neither make nor a shell reads it, for names in it may come from others' corpora
V     ?=# 1: commands are shown
Q     := $(if $(filter-out 0,$V),,@)
WORKERS ?= 1# that train together
VIRTUAL ?=# 1: all of them in one process; empty or 0: one each
STRIPES ?= 1# processes that each worker's network is cut over
DEVICE  ?=# that networks are trained on; empty: a GPU if there is one
ifneq ($(filter-out cpu cpu:0 cuda $(if $(findstring :,$(DEVICE)),$(patsubst %,cuda:%,$(shell seq 0 99))),$(DEVICE)),)
$(error DEVICE is '$(DEVICE)'; it must be cpu, cuda or cuda:N)
endif
PROCESSES := $(if $(filter-out 0,$(VIRTUAL)),1,$(WORKERS))
NPROC ?= $(if $(filter-out 1,$(STRIPES)),$(shell expr $(PROCESSES) '*' $(STRIPES)),$(PROCESSES))
START = $(PY) $(if $(filter-out 1,$(NPROC)),$S/launch.py --standalone --nproc-per-node $(NPROC))
# A recipe may set SPEECH (what lies in the folder of recordings that are not made here), INPUTS (files of the corpus
# that the manifests are made from), CONF and FILES (a paper's tables that RUNS are named in, as TABLE.yaml@SCALE); the
# environment's variables of these names are others.
$(foreach v,SPEECH INPUTS CONF FILES,$(if $(filter file,$(origin $v)),,$(eval $v :=)))
# Refuse a variable that no makefile sets by `?=`: a misspelt name, or a setting outside SET, would be ignored silently.
# PYTHON and LMS are of the root's: make fetch-librispeech librispeech PYTHON=python3.12 LMS=4-gram
KNOWN := $(sort $(shell sed -nE 's/^([A-Z_]+) *\?=.*/\1/p' $(MAKEFILE_LIST))) JOBS RECIPE DEBUG PYTHON LMS
UNKNOWN := $(filter-out $(KNOWN),$(if $(GIVEN),$(shell printf '%s\n' $(GIVEN:%='%') | grep -xE '[A-Za-z_.]+')))
ifneq ($(UNKNOWN),)
IS_SETTING := $(wildcard $(ROOT)/conf/$(firstword $(subst ., ,$(UNKNOWN)))/.)
$(if $(IS_SETTING),$(error $(firstword $(UNKNOWN)) is a setting, not a variable of make; call make with SET='$(firstword $(UNKNOWN))=...'))
$(if $(filter CORPUS_DIR,$(UNKNOWN)),$(error the recipe \
  $(notdir $(CURDIR)) makes its own recordings, and has no CORPUS_DIR; for yours, call `make \
  $(or $(patsubst %,% RECIPE=folder,$(filter check bundle status clean,$(MAKECMDGOALS))),folder) CORPUS_DIR=$(CORPUS_DIR)`))
$(error unknown variable $(firstword $(UNKNOWN))$(shell $(PY) -c 'import sys, difflib; \
  print(*[f" (did you mean {name}?)" for name in difflib.get_close_matches(sys.argv[1].upper(), sys.argv[2:], 1)])' \
  $(firstword $(UNKNOWN)) $(KNOWN)); `make help` and the recipe's README list them)
endif
# MORE, DEV_DIR, TEST_DIRS and TEXT are variables of all recipes with recordings, but some have no use for them.
# $3 are the settings that would name them.
unused = $(if $2,$(if $(strip $(foreach k,$3,$(findstring $k,$(CONF)))),,$(error $1 is '$($1)', but this recipe reads no such files; leave it out)))
$(call unused,MORE,$(value MORE_DIRS),.more_dirs=)
$(call unused,$(if $(value TESTED),TEST_DIRS,DEV_DIR),$(value HELD_OUT),corpus.folder.dev_dir= corpus.folder.test_dirs.)
$(call unused,TEXT,$(value TEXTS),lm.text=)
SETTINGS = gmm=$(ALIGNER) $(CONF)# of the recipe; where SET names the same key, it wins
# C is the folder of settings files. A plan (-n) works on a copy of it, so that asking changes neither
# what a make that runs at the same time reads, nor what is stale.
PLANNING := $(findstring n,$(filter-out --%,$(firstword -$(MAKEFLAGS))))
IS_PLAN := $(and $(PLANNING),$(wildcard $W/conf))
C       := $W/$(if $(IS_PLAN),.plan$(shell rm -rf $W/.plan && cp -Rp $W/conf $W/.plan),conf)
export ASR_WORK := $W
ifndef MAKE_PID# the process that was called, which runs until all is made: two in one work folder must agree on settings
MAKE_PID := $(shell echo $$PPID)
endif
export MAKE_PID
unexport WORKERS# each run's settings have it
ifndef JOBS
JOBS := $(shell nproc)
endif
export JOBS
export OPENBLAS_NUM_THREADS := 1# stages run JOBS processes instead
# Training's threads sleep while they wait for each other. If they spin, OpenMP's default, and anything
# else wants a core (-j2, a second user), training takes ten times as long or more.
export OMP_WAIT_POLICY ?= PASSIVE

# Systems of Gaussian mixtures, each grown from the one before it; the last one's alignments are
# what RUNS train on. With REALIGN=n every run is trained n times more, on its own alignments.
GMMS    ?= mono
REALIGN ?= 0
ifeq ($(filter $(REALIGN),0 1 2 3 4 5 6 7 8 9),)
$(error REALIGN is '$(REALIGN)'; it must be an integer from 0 to 9, the number of realignment passes)
endif
PASSES  := $(shell seq $(REALIGN))
ALIGNER := $(lastword $(GMMS))
# With SEEDS each run is trained once with every one of them, as RUN-seedN; a paper's runs (FILES) have such names anyway.
SEEDS   ?=
SUFFIXES := $(if $(FILES),,$(SEEDS:%=-seed%))
SEEDED  := $(if $(SUFFIXES),$(foreach r,$(RUNS),$(SUFFIXES:%=$r%)),$(RUNS))
# Objectives of conf/objective that each run is trained further with, as RUN-OBJECTIVE, from the network
# and the lattices of the run INITIAL; empty: its own.
SEQUENCE ?=
INITIAL  ?=
ifneq ($(and $(SUFFIXES),$(filter $(INITIAL),$(RUNS))),)
override INITIAL := $(INITIAL)$(firstword $(SUFFIXES))
endif
SEQUENCED := $(foreach r,$(SEEDED),$(SEQUENCE:%=$r-%))
INITIALS := $(if $(SEQUENCE),$(or $(INITIAL),$(SEEDED)))
NETS    := $(strip $(foreach r,$(SEEDED),$r $(PASSES:%=$r-realign%)) $(SEQUENCED))
MODELS  := $(GMMS) $(NETS)
# Models whose alignments networks are trained on: the last of GMMS, and all passes but the last.
ALIGN_TRAIN := $(if $(NETS),$(sort $(ALIGNER) $(if $(PASSES),$(filter-out %-realign$(REALIGN) $(SEQUENCED),$(NETS)))))
# The run whose acoustic scale and penalties, chosen on DEV, all networks are decoded with; empty: each
# takes its own. With SEEDS it is that run of the first seed.
SCALES  ?=
ifneq ($(and $(SUFFIXES),$(filter $(SCALES),$(RUNS))),)
override SCALES := $(SCALES)$(firstword $(SUFFIXES))
endif
EPOCHS  ?=# models of single epochs, RUN/epochs/N, to decode as well; they take optim.keep_epochs=true
# Runs whose lattices are kept, and scored anew by the larger language model (lm.big).
RESCORE ?=
RESCORED := $(RESCORE:%=%-rescored)
# Models to decode with a Witten-Bell bigram as well, as MODEL-bigram; Kaldi was measured with one.
BIGRAM  ?=
BIGRAMS := $(BIGRAM:%=%-bigram)
# Models to decode with probabilities of pronunciations and silences, too, counted in the alignments of
# TRAIN, as MODEL-pronprobs.
PRONPROBS ?=
PRONPROB_MODELS := $(PRONPROBS:%=%-pronprobs)
VARIANTS := $(BIGRAMS) $(PRONPROB_MODELS) $(RESCORED)
# What the networks' workers sent; printed where there is something to compare, or several workers.
EXCHANGE := $(if $(NETS),$W/tables/exchange.md)
EXCHANGE_TEXT := $(if $(strip $(word 2,$(NETS)) $(and $(NETS),$(filter-out 1,$(WORKERS)))),$W/tables/exchange.txt)
ifndef RECORDED# paper.mk's: runs that records stand for
RECORDED :=
endif
# What this call shows. resolve.py checks these choices and writes them into settings files, so that a
# change of them reruns what depends on them.
SCORED  := $(MODELS) $(VARIANTS) $(EPOCHS)
CHOICES := 'GMMS=$(GMMS)' 'NETS=$(NETS)' 'SCALES=$(SCALES)' 'RESCORE=$(RESCORE)' 'BIGRAM=$(BIGRAM)' \
  'PRONPROBS=$(PRONPROBS)' 'SPLITS=$(EVAL)' 'RECORDED=$(RECORDED)' \
  'EPOCHS=$(EPOCHS)' 'SEQUENCE=$(SEQUENCE)' 'INITIAL=$(INITIAL)' 'WORKERS=$(WORKERS)' 'STRIPES=$(STRIPES)' \
  $(if $(filter-out check,$(or $(MAKECMDGOALS),$(GOAL))),,CHECK=1)
SCORES  := $(foreach r,$(SCORED),$(EVAL:%=$W/exp/$r/score.%.json))
ALIGNED := $(MODELS:%=$W/ali/%/$(DEV).report.json)
MANIFESTS := $(foreach s,$(TRAIN) $(EVAL),$W/manifests/$s.jsonl.gz)
# Splits with all sentences that lm.without_eval=true removes from the text; without test sets that repeat them.
LM_SPLITS ?= $(TRAIN) $(EVAL)
CHECKED := $W/manifests/check.txt# comes before anything is computed, but that it is new makes nothing stale
TARGETS := $(MANIFESTS) $(CHECKED) $W/lm/index.json $W/lang/index.json $(if $(BIGRAM),$W/lang-bigram/index.json) \
  $(foreach s,$(TRAIN) $(EVAL),$W/feats/$s.jsonl.gz) $(GMMS:%=$W/exp/%/model.json) \
  $(foreach m,$(ALIGN_TRAIN),$(foreach s,$(TRAIN) $(DEV),$W/ali/$m/$s.jsonl.gz $W/shards/$m/$s/index.json)) \
  $(if $(INITIALS),$W/lang-weak/index.json) $(foreach s,$(TRAIN) $(DEV),$(INITIALS:%=$W/shards/%-lattices/$s/index.json)) \
  $(filter-out $(ALIGN_TRAIN:%=$W/ali/%/$(TRAIN).jsonl.gz),$(INITIALS:%=$W/ali/%/$(TRAIN).jsonl.gz)) \
  $(if $(PRONPROBS),$(if $(NETS),,$W/ali/$(ALIGNER)/$(TRAIN).jsonl.gz) $W/lang-pronprobs/index.json) \
  $(patsubst %,$W/exp/%/model.json,$(NETS) $(EPOCHS)) \
  $(patsubst %,$W/exp/%/tuned.json,$(filter-out $(if $(SCALES),$(filter-out $(SCALES) $(INITIALS),$(NETS))),$(MODELS)) $(VARIANTS)) \
  $(foreach m,$(filter-out $(ALIGN_TRAIN),$(MODELS)),$W/ali/$m/$(DEV).jsonl.gz) \
  $(foreach r,$(SCORED),$(EVAL:%=$W/exp/$r/hyp.%.jsonl)) $(SCORES) \
  $W/tables/wer.md $(EXCHANGE) $W/report/index.html

# The model that `make bundle` packs, with the scales that it is decoded with.
RUN     ?= $(lastword $(MODELS))
BUNDLE  ?= $W/bundle/$(notdir $(CURDIR))-$(RUN).tar
LICENCE ?=
unexport LICENCE
export ASR_LICENCE := $(value LICENCE)# as it was given: a price may be in it
OF_BUNDLE := $(if $(filter bundle,$(MAKECMDGOALS)),,$(firstword $(filter RUN LICENCE BUNDLE,$(GIVEN))))
ifneq ($(OF_BUNDLE),)
$(error $(OF_BUNDLE) is for `make bundle`$(if $(filter RUN,$(OF_BUNDLE)),; the networks to train are RUNS,$(comma) which makes \
  all that it needs; leave $(OF_BUNDLE) out of the goal '$(or $(MAKECMDGOALS),$(GOAL))'))
endif
ifeq ($(and $(filter bundle,$(MAKECMDGOALS)),$(if $(filter $(RUN),$(MODELS) $(PRONPROB_MODELS)),,wrong)),wrong)
$(error RUN is '$(RUN)', which is not one of this call's models: $(strip $(MODELS) $(PRONPROB_MODELS)); give the GMMS, RUNS, ... that it was trained with)
endif
$(if $(filter bundle,$(MAKECMDGOALS)),$(call one_word,BUNDLE,$(BUNDLE),name a file without one))

.PHONY: help table check bundle conf status clean
## In a recipe's folder, or from the root with RECIPE=NAME (table: make NAME):
##   make table    make the WER table and its prerequisites (-n: print the plan; -j2: stages in parallel)
##   make check    only check recordings, transcripts, speakers and words of all splits
##   make bundle   pack a model, with all that decoding needs, into work/bundle/NAME-RUN.tar: RUN=dnn
##                 (BUNDLE=path: another file, or a folder; LICENCE='...': licence of your own data)
##   make status   list done, stale and missing stages, with time and size
##   make clean    remove the work folder
##   variables     W=work folder  V=1 (show commands)  SET='feats.num_mels=80 decode.beam=12'
##                 JOBS=processes per stage, and threads of training (default: the number of cores)
##                 GMMS='mono tri lda sat'  RUNS='dnn'  REALIGN=realignment passes with the network
##                 SEEDS='1 2 3' (train each run three times; means over seeds)
##                 SIZE=tiny, default, large (digits, commands)  DEBUG=1 (whole tracebacks)
##                 DEVICE=cpu, cuda, cuda:N (default: a GPU if there is one)  TEXT='path path' (of language models)
##                 SEQUENCE='mmi smbr' (sequence training of each run with these objectives: dnn-mmi, dnn-smbr)
##                 INITIAL=initial run of sequence training (default: each run its own)
##                 RESCORE='dnn' (rescore lattices with lm.big)  BIGRAM='tri dnn' (also decode with a bigram)
##                 PRONPROBS='dnn' (also decode with pronunciation and silence probabilities)
##                 EPOCHS='dnn/epochs/3' (also decode models of single epochs; SET=optim.keep_epochs=true keeps them)
##                 SCALES=run whose scales, chosen on DEV, are used for all networks
##                 WORKERS=training workers, one process each; VIRTUAL=1: all in one process (bit-identical with JOBS=1)
##                 STRIPES=processes per worker's network (model parallelism)
table: $(CHECKED) $W/report/index.html
	@cat $(EXCHANGE_TEXT) $W/tables/wer.txt; echo "report: $(abspath $W/report/index.html)"
	@ls -d $(SCORED:%=$W/exp/%) >/dev/null 2>&1 || echo "a model above was deleted (make status); to train it again, delete $(abspath $W)/tables and report, too" >&2
check: $(CHECKED)
	@cat $<
# A settings file named here would make the manifests look through it to `conf`, and lang/index.json would be looked
# through to its stamp, which may be new; see the note on patterns. The scores come after both.
BUNDLED_LANG = $W/lang$(if $(filter $(RUN),$(PRONPROB_MODELS)),-pronprobs)/index.json
bundle: $(CURDIR)/README.md $W/exp/$(RUN:%-pronprobs=%)/model.json \
  $W/exp/$(if $(filter $(RUN),$(NETS)),$(or $(SCALES),$(RUN)),$(RUN))/tuned.json \
  $W/feats/$(TRAIN).jsonl.gz $(EVAL:%=$W/exp/$(RUN)/score.%.json) $(if $(wildcard $(BUNDLED_LANG)),,$(BUNDLED_LANG))
	$Q$(PY) $S/bundle.py $(wordlist 1,3,$^) $(BUNDLED_LANG) $C/lexicon.yaml $(filter-out $(BUNDLED_LANG),$(wordlist 4,99,$^)) $(BUNDLE)
help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)
# All that stages write into a work folder. Where anything else is in it, nothing is removed.
OURS := conf manifests audio lm lang(-bigram|-pronprobs|-weak)? feats ali shards exp tables report bundle log \
  fold-.* folds\.(md|json) \.plan \.(tmp|old)\..*
clean:
	@[ -z "$$(ls -A $W 2>/dev/null)" ] || [ -e $W/conf/corpus.yaml ] || ls -d $W/fold-*/conf >/dev/null 2>&1 || { echo "$W contains no conf/corpus.yaml, so it is not a work folder; not removed" >&2; exit 1; }
	@other=$$(ls -A $W 2>/dev/null | grep -vxE '$(subst $(space),|,$(OURS))' | head -n 1 || true); [ -z "$$other" ] || { echo "$W contains $$other, which no stage makes; nothing is removed: move it to another folder" >&2; exit 1; }
	@$(PY) -c 'import sys; from asr_train.locks import at_work; \
	  sys.exit("\n".join(f"{w}: {busy}; wait for it, or stop it" for w in sys.argv[1:] if (busy := at_work(w))) or None)' $W $W/fold-*
	$(if $(shell [ -L $W ] && echo link),find -H $W -mindepth 1 -delete,rm -rf $W)

# One settings file per stage, rewritten only when its content changes: a stage reruns when its own
# numbers change. Files that settings name (a lexicon, text, a mapping) are in no rule below: resolve.py
# touches a settings file when the content of a file that it names changes, which reruns the stages.
# '+' runs these lines under -n too, so that the plan it prints is true.
conf:
	+@$(PY) $S/resolve.py $C '$(strip $(SEEDED) $(SEQUENCED))' $(FILES) $(CHOICES) $(SETTINGS)
	$(if $(SPEECH),+@$(PY) $S/recordings.py $C/audio $W/manifests $(TRAIN) $(EVAL))
$C/%.yaml: conf ; +@:

# These outputs keep their time where they are made again with the same content, so that a corrected transcript of TEST, or
# a further test set, trains nothing again. OUTPUT.made tells when the stage last ran. A plan cannot know the content: it
# names all stages that may follow. The stamp is there if, and only if, its output is, and has the time at which the stage
# began, so that a table edited while it is read is read again.
SETTLED := $(MANIFESTS) $W/lm/index.json $W/lang/index.json
$(shell for f in $(SETTLED); do m=$${f%.json*}.made; \
  if [ ! -e $$f ]; then rm -f $$m; elif [ ! -e $$m ]; then mv $$m.begun $$m 2>/dev/null || touch -r $$f $$m; fi; done)
PLANNED := # stamps that this plan renews
stamped = $(eval PLANNED += $@)
begin = @mkdir -p $(@D) && touch $@.begun
end = @mv $@.begun $@ 2>/dev/null || test -e $@ # another make, such as `make -n`, may have moved it when it began
settle = $(if $(and $(PLANNING),$(filter $<,$(PLANNED))),@: what follows is made again only if this changes: $@,+@:)
define settle_rule # $1 is an output without its ending $2; one rule each, for make keeps the + of one for all files of a rule
$1%$2: $1%made ; $$(settle)
endef
$(foreach s,$(TRAIN) $(EVAL),$(eval $(call settle_rule,$W/manifests/$s,jsonl.gz)))
$(foreach d,lm lang,$(eval $(call settle_rule,$W/$d/index,json)))
# Make 4.4 looks through a file, to conf or its stamp, if two rules name it by % alone; and it makes a missing input that a
# pattern names without % even if nothing needs it, unless an explicit rule names it.
ifneq ($(filter notintermediate,$(.FEATURES)),)
THERE := $(wildcard $(TARGETS))
.NOTINTERMEDIATE: $(filter $(SETTLED),$(THERE)) $(SCORED:%=$C/scales/%.yaml)
.missing: $(filter-out $(THERE),$(TARGETS))
endif
$W/manifests/%.made: $C/corpus.yaml $C/lexicon.yaml $(if $(SPEECH),$C/audio/%.yaml) $(INPUTS)
	$(begin)
	$Q$(PY) $S/manifests.py $(wordlist 1,2,$^) $(@:made=jsonl.gz)$(stamped)
	$(end)
$W/manifests/check%txt: $C/corpus.yaml $C/lexicon.yaml $C/ali.yaml $(MANIFESTS) $C/splits.yaml
	$Q$(PY) $S/check.py $(filter-out %/splits.yaml,$^) $@
$W/lm/index%made: $C/lm.yaml $C/corpus.yaml $C/lexicon.yaml $(LM_SPLITS:%=$W/manifests/%.jsonl.gz) | $(CHECKED)
	$(begin)
	$Q$(PY) $S/lm.py $^ $(@:made=json)$(stamped)
	$(end)
$W/lang-bigram/index%json: $C/bigram.yaml $C/corpus.yaml $C/lexicon.yaml $W/lang/index.json \
  $(patsubst %,$W/manifests/%.jsonl.gz,$(filter-out $(TRAIN),$(LM_SPLITS)))
	$Q$(PY) $S/bigram.py $^ $@
$W/lang-pronprobs/index%json: $C/pronprobs.yaml $W/lang/index.json $W/ali/$(ALIGNER)/$(TRAIN).jsonl.gz $C/from/pronprobs.yaml
	$Q$(PY) $S/pronprobs.py $(wordlist 1,3,$^) $@
$W/lang/index%made: $W/manifests/$(TRAIN).jsonl.gz $W/manifests/$(DEV).jsonl.gz $C/lang.yaml $W/lm/index.json
	$(begin)
	$Q$(PY) $S/lang.py $^ $(@:made=json)$(stamped)
	$(end)
$W/feats/%.jsonl.gz: $W/manifests/%.jsonl.gz $C/feats.yaml | $(CHECKED)
	$Q$(PY) $S/feats.py $^ $@
# Rules for a single file are written as patterns, too (model%json). With an explicit target,
# .SECONDARY would make make look through its settings file to `conf`, which is no file, and remake the
# target every time.
# conf/from/NAME.yaml says which system's alignments NAME begins with. Another system's may be there, and old: only
# that file tells that they are not those that NAME was trained on.
define gmm_rule # $1 is the system, $2 the one before it; Gaussian mixtures are runs like any other
$W/exp/$1/model%json: $W/feats/$(TRAIN).jsonl.gz $W/lang/index.json $C/ali.yaml $C/gmm/$1.yaml \
  $(if $2,$W/exp/$2/model.json) $C/from/$1.yaml
	$Q$$(PY) $S/gmm.py $$(filter-out $C/from/%,$$^) $$@
endef
before := # nothing
$(foreach g,$(GMMS),$(eval $(call gmm_rule,$g,$(before)))$(eval before := $g))

define ali_rules # $1 is the model that aligns; the pattern is the split
$W/ali/$1/%.jsonl.gz: $W/feats/%.jsonl.gz $W/lang/index.json $W/exp/$1/model.json $C/ali.yaml
	$Q$$(PY) $S/ali.py $$^ $$@
$W/shards/$1/%/index.json: $W/feats/%.jsonl.gz $W/ali/$1/%.jsonl.gz $C/shards.yaml
	$Q$$(PY) $S/shards.py $$^ $$@
endef
$(foreach m,$(MODELS),$(eval $(call ali_rules,$m)))

# Resumes from the run's newest checkpoint; model.json is the last thing it writes.
define net_rule # $1 is the run, $2 whose alignments it learns, $3 its settings, $4 the network it begins with, $5 see above
$W/exp/$1/model%json: $W/shards/$2/$(TRAIN)/index.json $W/shards/$2/$(DEV)/index.json $C/run/$3.yaml $4 $5
	$Q$$(START) $S/train.py $$(filter-out $C/from/%,$$^) $$@
endef
define run_rules # $1 is the run
$(call net_rule,$1,$(ALIGNER),$1,,$C/from/$1.yaml)
$(foreach n,$(PASSES),$(call net_rule,$1-realign$n,$1$(if $(filter-out 1,$n),-realign$(shell expr $n - 1)),$1,,)
)
$(foreach o,$(SEQUENCE),$(call net_rule,$1-$o,$(or $(INITIAL),$1)-lattices,$1-$o,$W/exp/$(or $(INITIAL),$1)/model.json,)
)
endef
$(foreach r,$(SEEDED),$(eval $(call run_rules,$r)))
# The model of an epoch comes with the run (optim.keep_epochs), before its last; it is decoded as the run is. Touched,
# it is not older than what it comes with, which make would take for a reason to decode it again.
define epoch_rule # $1 is RUN/epochs/N
$W/exp/$1/model%json: $W/exp/$(firstword $(subst /, ,$1))/model.json
	@test -e $$@ || { echo "$$@ is missing: its run had fewer epochs, or no optim.keep_epochs=true" >&2; exit 1; }
	@touch $$@
endef
$(foreach e,$(EPOCHS),$(eval $(call epoch_rule,$e)))
# What competes with the transcripts of TRAIN and DEV, found with a weak language model.
$W/lang-weak/index%json: $C/lattices.yaml $W/lang/index.json $W/manifests/$(TRAIN).jsonl.gz
	$Q$(PY) $S/weak.py $^ $@
define lattice_rule # $1 is the run that decodes; its own alignments are the references
$W/shards/$1-lattices/%/index.json: $W/feats/%.jsonl.gz $W/ali/$1/%.jsonl.gz $C/shards.yaml \
  $W/exp/$1/model.json $W/exp/$1/tuned.json $W/lang-weak/index.json $C/decode.yaml $C/lattices.yaml
	$Q$$(PY) $S/shards.py $$^ $$@
endef
$(foreach i,$(INITIALS),$(eval $(call lattice_rule,$i)))
# Scales are chosen on DEV alone; TEST only meets the choice, and needs no alignment.
$W/exp/%/tuned.json: $W/exp/%/model.json $C/decode.yaml $C/normaliser.yaml $W/lang/index.json \
  $W/feats/$(DEV).jsonl.gz
	$Q$(PY) $S/tune.py $^ $@
define other_lang_rules # $1 is bigram or pronprobs
$W/exp/%-$1/tuned.json: $W/exp/%/model.json $C/decode.yaml $C/normaliser.yaml $W/lang-$1/index.json \
  $W/feats/$(DEV).jsonl.gz
	$Q$$(PY) $S/tune.py $$^ $$@
$(foreach s,$(EVAL),$W/exp/%-$1/hyp.$s.jsonl: $W/exp/%/model.json $W/exp/%-$1/tuned.json $W/lang-$1/index.json \
  $W/feats/$s.jsonl.gz $C/scales/%-$1.yaml
	$Q$$(PY) $S/decode.py $$^ $$@
)
endef
$(foreach o,bigram pronprobs,$(eval $(call other_lang_rules,$o)))
$W/exp/%-rescored/tuned.json: $W/exp/%/hyp.$(DEV).jsonl $W/manifests/$(DEV).jsonl.gz \
  $C/decode.yaml $C/normaliser.yaml $W/lang/index.json $W/lm/index.json
	$Q$(PY) $S/rescore.py tune $^ $@

# conf/scales/RUN.yaml says whose scales a run is decoded with, and whether its lattices are kept.
define eval_rules # $1 is the split; the pattern is the run
$W/exp/%/hyp.$1.jsonl: $W/exp/%/model.json $W/exp/%/tuned.json $W/lang/index.json $W/feats/$1.jsonl.gz \
  $C/scales/%.yaml
	$Q$$(PY) $S/decode.py $$^ $$@
$W/exp/%-rescored/hyp.$1.jsonl: $W/exp/%/hyp.$1.jsonl $W/exp/%-rescored/tuned.json $W/lang/index.json \
  $W/lm/index.json
	$Q$$(PY) $S/rescore.py apply $$^ $$@
$W/exp/%/score.$1.json: $W/exp/%/hyp.$1.jsonl $W/manifests/$1.jsonl.gz $C/score.yaml
	$Q$$(PY) $S/score.py $$^ $$@
endef
$(foreach s,$(EVAL),$(eval $(call eval_rules,$s)))
# $1 is the run, $2 the split; with its dot: the pattern hyp.test% would also be hyp.test_room
define scales_rule
$W/exp/$1/hyp.$2.json%: $W/exp/$1/model.json $W/exp/$(or $(SCALES),$(firstword $(subst /, ,$1)))/tuned.json \
  $W/lang/index.json $W/feats/$2.jsonl.gz $C/scales/$1.yaml
	$Q$$(PY) $$S/decode.py $$^ $$@
endef
$(foreach s,$(EVAL),$(foreach r,$(if $(SCALES),$(filter-out $(SCALES),$(NETS))) $(EPOCHS),\
  $(eval $(call scales_rule,$r,$s))))
SHOWN := $C/shown.yaml $C/splits.yaml
define no_exchange # an earlier call's table, of runs that this one has not

	@rm -f $W/tables/exchange.*
endef
$W/tables/wer%md: $C/score.yaml $(SHOWN) $(SCORES)
	$Q$(PY) $S/tables.py $(filter-out $(SHOWN),$^) $@$(if $(EXCHANGE),,$(no_exchange))
$W/tables/exchange%md: $C/score.yaml $(SHOWN) $(NETS:%=$W/exp/%/model.json) \
  $(foreach r,$(NETS),$(EVAL:%=$W/exp/$r/score.%.json))
	$Q$(PY) $S/exchange.py $(filter-out $(SHOWN),$^) $@
# ASR_GOAL: what to call, from the root, to have all done; make escapes spaces in it, and line feeds are none. While it
# is split at spaces, escaped ones are \s: a value may end with one. Variables of the environment count as well.
define newline


endef
ENVIRONMENT := $(foreach v,$(filter-out JOBS MAKE%,$(KNOWN)),$(if $(filter environment,$(firstword $(origin $v))),\
  $v=$(subst $(space),\ ,$(subst \,\\,$(value $v)))))
export ASR_GOAL := $(notdir $(CURDIR)) \
  $(subst \b,\\,$(subst \s,\ ,$(patsubst W=%,W=$(abspath $W),$(filter-out RECIPE=%,\
  $(subst \ ,\s,$(subst \\,\b,$(subst $(newline),\ ,$(subst $$$$,$$,$(MAKEOVERRIDES)))))))))$(ENVIRONMENT)
# wer.md depends on the scores, manifests and score.yaml that are read here. An explicit rule that named these would
# upset the plans of -n, and a pattern would make models intermediate files: an alignment by a missing one would be
# taken for current.
$W/report/index.html: $W/tables/wer.md $(EXCHANGE) $(MODELS:%=$W/ali/%/$(DEV).jsonl.gz) $(NETS:%=$W/exp/%/model.json)
	$Q$(PY) $S/report.py $W/tables/wer.json $(EXCHANGE:.md=.json) $(ALIGNED) $(NETS:%=$W/exp/%/log.jsonl) \
	  $(GMMS:%=$W/exp/%/passes.jsonl) $(MODELS:%=$W/exp/%/model.json) $(SCORES) $(MANIFESTS) $C/score.yaml $@

status:
	@plan=$$(mktemp) && trap "rm -rf $$plan $W/.plan" EXIT && $(MAKE) -n $(GOAL) > $$plan && $(PY) $S/status.py $$plan $(TARGETS)
