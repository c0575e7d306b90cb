"""Measures how fast training is under settings that do not change its result: workers, loaders, threads, buckets."""
