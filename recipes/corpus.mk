# For recipes with recordings: CORPUS_DIR is their folder; a relative path is relative to the repository's
# root, wherever make is called. NEEDS lists what it must contain, GET says how to obtain it. If a recipe
# supports them, MORE names further folders with utterances.tsv to train on, DEV_DIR and TEST_DIRS those that are DEV and
# TEST as a whole, and TEXT the text for language models. Where these are files, LM_FILES has the variables that name
# them, LM_SMALL LM_BIG.
include $(dir $(lastword $(MAKEFILE_LIST)))paths.mk
$(call one_word,CORPUS_DIR,$(CORPUS_DIR),name a link to it without one)
MORE      ?=
DEV_DIR   ?=
TEST_DIRS ?=
TEXT      ?=
$(if $(filter file,$(origin LM_FILES)),,$(eval LM_FILES :=))
DATA      := $(call from_root,$(CORPUS_DIR))
ifndef ASR_CALL# set by asr-train recipe; not by ?=, as those of the user
ASR_CALL :=
endif
HOW       := $(if $(ASR_CALL),$(subst make fetch-,asr-train fetch ,$(GET)),$(GET))
$(call one_word,DEV_DIR,$(DEV_DIR),name a link to it without one)
$(foreach v,$(LM_FILES),$(call one_word,$v,$($v),name a link to it without one))
$(foreach v,MORE TEST_DIRS TEXT,$(foreach d,$($v),$(call one_word,$v,$d,name a link to it without one)))
MORE_DIRS := $(foreach d,$(MORE),$(call from_root,$d))
# The first of TEST_DIRS is the split test, path/Other another one, test_other.
TESTED    := $(foreach d,$(TEST_DIRS),$(call from_root,$d))
TESTS     := $(if $(TESTED),test $(foreach d,$(wordlist 2,$(words $(TESTED)),$(TESTED)),$(shell \
  echo 'test_$(notdir $d)' | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9_]/_/g; s/^test_test_/test_/')))
HELD_OUT  := $(strip $(if $(DEV_DIR),$(call from_root,$(DEV_DIR))) $(TESTED))
SPEECH    := $(NEEDS:%=$(DATA)/%) $(patsubst %,%/utterances.tsv,$(MORE_DIRS) $(HELD_OUT))
TEXTS     := $(foreach t,$(TEXT),$(call from_root,$t))
NEEDED    := $(SPEECH) $(TEXTS) $(foreach v,$(LM_FILES),$(foreach d,$($v),$(call from_root,$d)))
INPUTS    := $(wildcard $(filter-out %/.,$(SPEECH)))
MISSING   := $(filter-out $(wildcard $(NEEDED)),$(NEEDED))
HELP      := $(filter help clean,$(MAKECMDGOALS))
ifeq ($(or $(CORPUS_DIR),$(HELP)),)
$(error CORPUS_DIR is not given; call make with CORPUS_DIR=path of a folder with $(NEEDS), $(HOW))
endif
UNREADABLE    := $(if $(MISSING),$(shell [ ! -d '$(DATA)' ] || [ -r '$(DATA)' -a -x '$(DATA)' ] || echo closed))
ifneq ($(UNREADABLE),)
$(error no permission to read the folder $(DATA): change its permissions, or call make with another CORPUS_DIR)
endif
# The user's variable that names what is missing, if it is not CORPUS_DIR
is_given = $(filter command environment,$(firstword $(origin $1)))
names    = $(foreach d,$($1),$(filter $(call from_root,$d) $(call from_root,$d)/utterances.tsv,$(firstword $(MISSING))))
NAMED_BY := $(firstword $(foreach v,MORE DEV_DIR TEST_DIRS TEXT $(LM_FILES),\
  $(if $(and $(call is_given,$v),$(call names,$v)),$v)))
ifneq ($(if $(HELP),,$(MISSING)),)
$(if $(NAMED_BY),$(error $(firstword $(MISSING)) is missing: correct $(NAMED_BY)='$($(NAMED_BY))', or leave it out))
$(error $(firstword $(MISSING)) is missing: $(HOW), or call make with CORPUS_DIR=path of the corpus)
endif
ifneq ($(and $(LM_FILES),$(if $(HELP)$(strip $(LM_SMALL)),,empty)),)
$(error LM_SMALL is empty, but the decoding graph needs a language model; name an ARPA file, or leave LM_SMALL out)
endif
TEXT_CONF := lm.text=$(call list_of,$(TEXTS))
MORE_CONF := $(if $(MORE_DIRS),corpus.folder.more_dirs=$(call list_of,$(MORE_DIRS)))
HELD_CONF := $(if $(DEV_DIR),corpus.folder.dev_dir=$(firstword $(HELD_OUT))) \
  $(foreach i,$(shell seq $(words $(TESTED))),+corpus.folder.test_dirs.$(word $i,$(TESTS))=$(word $i,$(TESTED)))
ifneq ($(words $(sort $(TESTS))),$(words $(TESTS)))
$(error TEST_DIRS is '$(TEST_DIRS)', whose splits would be called $(TESTS); name links to them that are called differently)
endif
