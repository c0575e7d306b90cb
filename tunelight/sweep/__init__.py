"""Run a sweep, resume it, reproduce its trials, check it before it starts."""
