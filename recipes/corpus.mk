# For recipes with recordings: CORPUS_DIR is their folder; a relative path is relative to the repository's
# root, wherever make is called. NEEDS lists what it must contain, GET says how to obtain it. If a recipe
# supports them, MORE names further folders with utterances.tsv to train on, and TEXT the text for language
# models, or the models themselves.
include $(dir $(lastword $(MAKEFILE_LIST)))paths.mk
$(call one_word,CORPUS_DIR,$(CORPUS_DIR),name a link to it without one)
MORE      ?=
TEXT      ?=
DATA      := $(call from_root,$(CORPUS_DIR))
$(foreach v,MORE TEXT,$(foreach d,$($v),$(call one_word,$v,$d,name a link to it without one)))
MORE_DIRS := $(foreach d,$(MORE),$(call from_root,$d))
SPEECH    := $(NEEDS:%=$(DATA)/%) $(MORE_DIRS:%=%/utterances.tsv)
TEXTS     := $(foreach t,$(TEXT),$(call from_root,$t))
NEEDED    := $(SPEECH) $(TEXTS)
INPUTS    := $(wildcard $(filter-out %/.,$(SPEECH)))
MISSING   := $(filter-out $(wildcard $(NEEDED)),$(NEEDED))
HELP      := $(filter help clean,$(MAKECMDGOALS))
ifeq ($(or $(CORPUS_DIR),$(HELP)),)
$(error CORPUS_DIR is not given; call make with CORPUS_DIR=path of a folder with $(NEEDS), $(GET))
endif
UNREADABLE    := $(if $(MISSING),$(shell [ ! -d '$(DATA)' ] || [ -r '$(DATA)' -a -x '$(DATA)' ] || echo closed))
ifneq ($(UNREADABLE),)
$(error no permission to read the folder $(DATA): change its permissions, or call make with another CORPUS_DIR)
endif
ifneq ($(if $(HELP),,$(MISSING)),)
$(error $(firstword $(MISSING)) is missing: $(GET), or call make with CORPUS_DIR=path of the corpus)
endif
TEXT_CONF := lm.text=$(call list_of,$(TEXTS))
MORE_CONF := $(if $(MORE_DIRS),corpus.folder.more_dirs=$(call list_of,$(MORE_DIRS)))
