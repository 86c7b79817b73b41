# For recipes with recordings: CORPUS_DIR is their folder; a relative path counts from the repository's
# root, wherever make is called. NEEDS is what must lie in it, GET how to obtain it. Where a recipe takes
# them, MORE names further folders with utterances.tsv to train on, and TEXT the files that a language
# model learns from, or the models themselves.
include $(dir $(lastword $(MAKEFILE_LIST)))paths.mk
$(call one_word,CORPUS_DIR,$(CORPUS_DIR),name a link to it without one)
MORE      ?=
TEXT      ?=
from_root  = $(abspath $(if $(filter /%,$1),$1,../../$1))
DATA      := $(call from_root,$(CORPUS_DIR))
MORE_DIRS := $(foreach d,$(MORE),$(call from_root,$d))
SPEECH    := $(NEEDS:%=$(DATA)/%) $(MORE_DIRS:%=%/utterances.tsv)
TEXTS     := $(foreach t,$(TEXT),$(call from_root,$t))
NEEDED    := $(SPEECH) $(TEXTS)
INPUTS    := $(wildcard $(filter-out %/.,$(SPEECH)))
LACKING   := $(filter-out $(wildcard $(NEEDED)),$(NEEDED))
CLOSED    := $(if $(LACKING),$(shell [ ! -d '$(DATA)' ] || [ -r '$(DATA)' -a -x '$(DATA)' ] || echo closed))
ifneq ($(CLOSED),)
$(error $(DATA) is a folder that you may not read: give yourself the right to it, or call make with another CORPUS_DIR)
endif
ifneq ($(if $(filter help clean,$(MAKECMDGOALS)),,$(LACKING)),)
$(error $(firstword $(LACKING)) is missing: $(GET), or call make with CORPUS_DIR=path of its folder)
endif
# Lists in settings are written [word,word].
comma := ,
space := $(subst ,, )
list_of    = [$(subst $(space),$(comma),$(strip $1))]
TEXT_CONF := lm.text=$(call list_of,$(TEXTS))
MORE_CONF := $(if $(MORE_DIRS),corpus.folder.more_dirs=$(call list_of,$(MORE_DIRS)))
