"""Doors to what is outside: the engine, the lakehouse, Kafka, and the jars they run on."""
