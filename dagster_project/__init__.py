"""The application: what Dagster loads, the command `tidetable`, settings, and the topologies."""
