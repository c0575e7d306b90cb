"""Gangs: N Ray actors that train as one. Knows Ray; knows neither Tune nor Lightning."""
