"""One checkpoint: when it is written, how, where it is found again and which are kept. Knows no framework."""
