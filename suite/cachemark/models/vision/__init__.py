"""Image tokenizers: codes to pixels and back."""
