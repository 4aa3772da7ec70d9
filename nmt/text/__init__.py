"""Text: bytes to lines (`lines`), lines to piece ids and back (`tokenizer`)."""
