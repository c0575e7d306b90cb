"""A driver's Trainer, carried out on a gang."""
