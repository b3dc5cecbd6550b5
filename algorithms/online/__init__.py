"""Online meta-learning on a stream of tasks."""
