"""Mutation: each small change of the rules is made, and some test has to notice it."""
