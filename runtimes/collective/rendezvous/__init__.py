"""How ranks find each other: stores, authentication, connections, shared memory."""
