"""The models: LlamaGen, VAR, MAR, their image tokenizers and small bundled ones."""
