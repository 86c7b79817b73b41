# make splits names at spaces, the shell and settings read some characters otherwise: such paths are refused. $1 is the
# variable, $2 the path, $3 what to do; $4 is what it is, if not a path.
hash := \#
ODD_CHARACTERS := \ & ; ( ) ' " ` $$ , = ~ $(hash) ! { } [ ] * ? < > | : % ^
one_word = $(if $(word 2,$2),$(error $1 is '$2', but make does not support $(or $4,paths) with spaces; $3))$(foreach \
  c,$(ODD_CHARACTERS),$(if $(findstring $c,$2),$(error $1 is '$2', but $(or $4,paths) with $c are not supported; $3)))
$(call one_word,the checkout,$(CURDIR),move it to a folder without one)
# make expands what follows a $$ in a value, whose path would be another; $$(value) has it as it was given.
$(foreach v,CORPUS_DIR DEV_DIR TEST_DIRS MORE TEXT W BUNDLE HUMAN GRAMMAR RESULTS RECORDS LM_SMALL LM_BIG,$(if $(filter \
  command environment,$(firstword $(origin $v))),$(if $(findstring $$,$(value $v)),$(error $v is '$(value $v)', but paths \
  with $$ are not supported; name a link to it without one))))
ROOT := $(abspath $(dir $(lastword $(MAKEFILE_LIST)))/..)
# Python takes the code of this checkout. A .venv that was copied with it has that of the original.
ifneq ($(firstword $(subst :, ,$(value PYTHONPATH))),$(ROOT))
export PYTHONPATH := $(ROOT)$(if $(value PYTHONPATH),:$(PYTHONPATH))
endif
# Containers often forbid Python to keep compiled modules; each process would then compile all that torch imports, for 4 s.
unexport PYTHONDONTWRITEBYTECODE
# A relative path is relative to the repository's root, wherever make is called.
from_root = $(abspath $(if $(filter /%,$1),$1,../../$1))
# Lists in settings are written [word,word].
comma := ,
space := $(subst ,, )
list_of = [$(subst $(space),$(comma),$(strip $1))]
MAKEOVERRIDES ?=# undefined without variables, of which make would warn
# Variables of the command line. MAKEOVERRIDES has the words of values, too: SET='a=1 b=2' gives no variable b.
GIVEN := $(foreach v,$(sort $(foreach w,$(MAKEOVERRIDES),$(firstword $(subst =, ,$w)))),$(if $(filter command,$(firstword $(origin $v))),$v))
# If a variable is given twice, make silently ignores the first.
DUPLICATES := $(shell tr '\0' '\n' 2>/dev/null < /proc/$$PPID/cmdline | sed -nE 's/^(SET|RUNS|GMMS|SEEDS|SEQUENCE|EPOCHS|RESCORE|BIGRAM|PRONPROBS|MORE|TEST_DIRS|TEXT|CONDITIONS|TABLES|FOLDS)=.*/\1/p' | sort | uniq -d)
ifneq ($(DUPLICATES),)
$(error $(firstword $(DUPLICATES)) is given twice, and make would use only the last; combine both: $(firstword $(DUPLICATES))='... ...')
endif
