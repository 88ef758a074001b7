"""The passes, one file each, by group; `lowerkit.passes.registry` finds them by name."""
