"""The Open Inference Protocol, version 2, over HTTP: requests, responses and errors as bytes."""
