"""The family that takes every region: linalg, bufferization, loops, LLVM's vectorizer."""
