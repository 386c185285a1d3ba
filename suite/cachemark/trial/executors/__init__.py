"""Where trials run: on the devices of this machine, or on those of a cluster."""
