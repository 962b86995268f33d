"""The topologies of this project: one file each, which calls its own `topology`."""
