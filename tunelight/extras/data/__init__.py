"""Ray Data for gangs: a sweep's datasets, each rank's shard of one, and a data module that feeds Lightning from it."""
