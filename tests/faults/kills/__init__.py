"""A whole topology under clients, engines and brokers killed at random: nothing lost, nothing twice."""
