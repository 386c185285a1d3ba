"""Loading of plug-ins."""
