"""Bisection: which stage, which pass, which op first computes something else, and a folder that shows it again."""
