"""Matrix products: register tiles over packed panels."""
