"""Translation: a sentence in, its words in another language out, one after the other."""
