"""SQL text: what can be known of types and expressions without Spark."""
