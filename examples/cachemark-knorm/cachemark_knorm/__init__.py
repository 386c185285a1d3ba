"""A cache method for cachemark: eviction by the norm of keys."""
