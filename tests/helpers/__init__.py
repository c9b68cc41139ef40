"""What tests of several folders share: models, samples, waiting, child processes."""
