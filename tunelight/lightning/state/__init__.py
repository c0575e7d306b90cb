"""What training is made of: how it is kept, put back and handed over."""
