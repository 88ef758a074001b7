"""From an exported graph to the torch dialect: checks, functional form, import."""
