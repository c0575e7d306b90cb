"""Random training programs, trained by Lightning's own DDP and by tunelight, whose outcomes must be equal."""
