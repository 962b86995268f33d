"""What survives: a client or an engine killed at any moment, and one that wakes up too late."""
