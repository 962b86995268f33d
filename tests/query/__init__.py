"""Queries without a JVM."""
