"""The topology alone: no JVM, milliseconds."""
