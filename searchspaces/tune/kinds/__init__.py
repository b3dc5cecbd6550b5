"""Search kinds, one class per file; `spaces.SEARCH_KINDS` lists them."""
