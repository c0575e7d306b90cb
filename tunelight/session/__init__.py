"""A worker's own context: the trial that it trains, its reports, and the decisions on them. No Ray, no torch."""
