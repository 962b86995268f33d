"""Dagster and the command: definitions, runs, checks, sensors, on real parts."""
