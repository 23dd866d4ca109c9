"""GPU checks: compares the package's figures with independent measurements on CUDA."""
