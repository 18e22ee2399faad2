"""The arrays behind vLLM's block ids; block ids themselves belong to vLLM's scheduler."""
