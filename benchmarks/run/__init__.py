"""`sparktrain.run` against what else starts a function on several processes."""
