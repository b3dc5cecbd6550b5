"""Templates of `hedgerow new algorithm`: an algorithm and its test, in which only the names are replaced."""
