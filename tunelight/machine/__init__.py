"""This process and this machine, without Ray or torch."""
