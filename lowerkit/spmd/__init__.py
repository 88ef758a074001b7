"""Programs for several devices: how a user names a mesh and a plan, and what came of them."""
