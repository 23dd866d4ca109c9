"""Child processes that judge the training that starts them."""
