"""Checkpoints: when they are written, how, where they are found again and which are kept. No framework."""
