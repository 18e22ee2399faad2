"""The command ``vllm-dspark``."""
