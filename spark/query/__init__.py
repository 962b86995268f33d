"""Queries of stored tables without a JVM: rows by key, by range and by time, at one version or at one cut."""
