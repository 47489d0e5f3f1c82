"""Data files about released packages, and the functions that read them. Needs the standard library only."""
