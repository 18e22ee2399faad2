"""DSpark speculative decoding for vLLM on MLX.

Imports nothing: vLLM loads this package in every one of its processes.
"""

__version__ = "0.1.0"
