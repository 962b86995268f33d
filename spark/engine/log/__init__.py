"""What the Delta logs say, and the commits that write them: positions, definitions, rows."""
