"""A model that is wider than the one whose hyperparameters were searched: the maximal update parametrisation."""
