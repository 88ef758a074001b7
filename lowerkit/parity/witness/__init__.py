"""The witness: each distinct op and kernel of a model is run alone, beside eager or the interpreter."""
