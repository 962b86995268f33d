"""Dagster's view of topologies: assets, jobs, checks, sensors. It computes nothing."""
