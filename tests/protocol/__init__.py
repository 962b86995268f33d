"""The commit protocol under simulation: the engine's own code, on a lake and a broker that live in memory."""
