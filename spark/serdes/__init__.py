"""Serdes: bytes to columns, and back."""
