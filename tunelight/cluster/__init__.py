"""Find a Ray, start one, ask what it holds and watch that it lives."""
