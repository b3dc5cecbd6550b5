"""The kinds of search, one class in one file each; `spaces.SEARCH_KINDS` lists them."""
