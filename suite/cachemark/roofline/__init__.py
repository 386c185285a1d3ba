"""FLOPs and bytes of a generation by arithmetic."""
