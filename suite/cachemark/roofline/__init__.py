"""FLOPs and bytes on paper: the work of a generation, before anything is measured."""
