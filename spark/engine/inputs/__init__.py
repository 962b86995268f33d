"""What steps read: pins, snapshots and spans of the inputs, stream time, and cached frames."""
