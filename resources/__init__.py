"""Connections to the engine, the lakehouse and Kafka, and the jars that the servers run on."""
