"""Recordings of Debezium on a real PostgreSQL, and tables over them held to what the database had."""
