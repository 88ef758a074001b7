"""How the commands show what they found to people: tables, and the same as documents."""
