"""Reports from the training loops of other libraries; each module imports the library that it is named after."""
