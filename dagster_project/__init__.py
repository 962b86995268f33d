"""The application: Dagster's definitions, the command `tidetable`, settings, and the topologies."""
