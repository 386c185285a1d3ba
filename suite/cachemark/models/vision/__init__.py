"""Image tokenizers: images to tokens and back."""
