"""Arms of a comparison: one engine with one setting, in a process of its own.

This is the one package beside the plugin that knows vLLM, as its user.
"""
