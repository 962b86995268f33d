"""Laws of the algebra."""
