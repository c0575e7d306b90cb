"""Lightning's side of tunelight. Nothing is imported here: every Trainer of the environment imports this."""
