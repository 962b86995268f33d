"""The way: all reading and writing, one file per arrow."""
