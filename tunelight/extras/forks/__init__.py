"""Workers forked from a process that has imported their libraries. Knows neither Ray nor Lightning by name."""
