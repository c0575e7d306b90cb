"""Horovod as a backend: the strategy, and what connects the ranks of a gang."""
