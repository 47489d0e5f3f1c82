"""What a checkpoint's config.json says about the model, and the parameters and FLOPs that follow from it."""
