"""The live page: a local server that shows sweeps while they run, and passes on commands to them."""
