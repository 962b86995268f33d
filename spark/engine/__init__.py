"""The engine: all reads and writes, one module per operation."""
