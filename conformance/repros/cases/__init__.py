"""One file per fault: what each rank does, and what the documents promise; ``script`` adds what all of them need."""
