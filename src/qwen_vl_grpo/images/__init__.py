"""What draws a completion: one file a family of diffusion models, each an ImageGenerator (interfaces.py)."""
