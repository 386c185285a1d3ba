"""The process of a trial: it loads a model, measures cases and evaluates their images."""
