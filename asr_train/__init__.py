"""Recipes for hybrid speech acoustic models: from recordings to a word error rate."""
