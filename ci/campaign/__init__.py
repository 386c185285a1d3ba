"""What a GPU that is at hand for half an hour can tell, in stages; see ../gpu_campaign.py."""
