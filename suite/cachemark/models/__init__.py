"""The models: LlamaGen, VAR, MAR, their image tokenizers and small embedded ones."""
