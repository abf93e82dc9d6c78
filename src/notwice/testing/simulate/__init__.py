"""Runs real guards over virtual time, a simulated store and chosen faults: one seed is one history."""
