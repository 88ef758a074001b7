"""What tensor cores compute: sums of products that are cut while they are aligned, by the rule of each generation.

``terms`` makes values and exponents of the bits of a fragment, ``rules`` says what a card does, ``sums`` does it.
"""
