# make splits names at spaces, so paths with a space are refused. $1 is the variable, $2 the path, $3 what to do.
one_word = $(if $(word 2,$2),$(error $1 is '$2', but make does not support paths with spaces; $3))
$(call one_word,the checkout,$(CURDIR),move it to a folder without one)
# A relative path is relative to the repository's root, wherever make is called.
from_root = $(abspath $(if $(filter /%,$1),$1,../../$1))
# If a variable is given twice, make silently ignores the first.
DUPLICATES := $(shell tr '\0' '\n' 2>/dev/null < /proc/$$PPID/cmdline | sed -nE 's/^(SET|RUNS|GMMS|SEEDS|RESCORE|BIGRAM|MORE|TEXT)=.*/\1/p' | sort | uniq -d)
ifneq ($(DUPLICATES),)
$(error $(firstword $(DUPLICATES)) is given twice, and make would use only the last; combine both: $(firstword $(DUPLICATES))='... ...')
endif
