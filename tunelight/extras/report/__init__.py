"""Saved reports of a sweep, or of several."""
