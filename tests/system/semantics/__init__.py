"""Consuming under simulation: one trial per capability, every seed another life."""
