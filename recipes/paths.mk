# make takes a space for the end of a name: a path that has one is refused before it falls apart.
# $1 says whose it is, $2 is the path, $3 what to do.
one_word = $(if $(word 2,$2),$(error $1 is '$2', and make knows no paths with a space; $3))
$(call one_word,the checkout,$(CURDIR),move it to a folder without one)
# A list that is given twice would count once: the first one is lost without a word.
TWICE := $(shell tr '\0' '\n' 2>/dev/null < /proc/$$PPID/cmdline | sed -nE 's/^(SET|RUNS|GMMS|SEEDS|RESCORE|BIGRAM|MORE|TEXT)=.*/\1/p' | sort | uniq -d)
ifneq ($(TWICE),)
$(error $(firstword $(TWICE)) is given twice, and only the last would count; put both into one: $(firstword $(TWICE))='... ...')
endif
