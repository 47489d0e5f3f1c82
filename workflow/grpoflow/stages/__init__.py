"""What each rule of the workflow calls."""
