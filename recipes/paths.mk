# make takes a space for the end of a name: a path that has one is refused before it falls apart.
# $1 says whose it is, $2 is the path, $3 what to do.
one_word = $(if $(word 2,$2),$(error $1 is '$2', and make knows no paths with a space; $3))
$(call one_word,the checkout,$(CURDIR),move it to a folder without one)
