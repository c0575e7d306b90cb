"""What a sweep does without."""
