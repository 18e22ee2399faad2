"""The demo model: SmolLM2-135M-Instruct as a Hugging Face folder, without a model hub."""
