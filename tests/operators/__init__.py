"""What each operator does to a row, drawn; the laws are in tests/laws."""
