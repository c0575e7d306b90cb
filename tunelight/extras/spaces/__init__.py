"""Search spaces of other programs."""
