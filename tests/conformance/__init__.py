"""Real Kafka Streams as the oracle of the table algebra."""
