"""What needs a GPU: `make gpu`. With TUNELIGHT_GPU_TESTS=cpu most of it runs on CPUs, which tests the tests."""
