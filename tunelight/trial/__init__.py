"""One trial of Ray Tune as one gang of workers."""
