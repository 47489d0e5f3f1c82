"""A tiny model and a tiny task, so that the whole chain can run on one machine without a GPU in minutes."""
