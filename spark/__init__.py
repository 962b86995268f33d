"""The library: a topology, its algebra and its engine."""
