"""What the training code of a trial's worker is told, and what it reports. Knows neither Ray nor torch."""
