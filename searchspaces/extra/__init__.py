"""Outside the core: published tables (`hedgerow table`) and replays of recorded searches (`hedgerow replay`)."""
