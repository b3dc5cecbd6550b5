"""Search kinds; `spaces.SEARCH_KINDS` lists them."""
