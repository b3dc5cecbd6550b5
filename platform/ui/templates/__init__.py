"""What `hedgerow new algorithm` begins with: an algorithm and its test, as they are but for their names."""
