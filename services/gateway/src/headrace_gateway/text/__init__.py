"""Templates, tokenizing, detokenizing and stop strings: all that a gateway does with text."""
