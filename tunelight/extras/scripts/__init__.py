"""Training scripts that run as they are on a trial's workers: what `tl.run(space, script="train.py")` trains."""
