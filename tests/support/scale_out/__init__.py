"""What the tests of replicas and of serving share."""
