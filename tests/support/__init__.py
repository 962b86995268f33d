"""What tests of several folders share: readers of tables and topics, judges, sessions, drawn tables."""
