"""SQL text: what is known of types and expressions without Spark."""
