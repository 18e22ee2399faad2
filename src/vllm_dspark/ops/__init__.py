"""Array operations with more than one implementation."""
