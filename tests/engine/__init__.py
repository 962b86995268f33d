"""The engine on real Delta tables and a real broker."""
