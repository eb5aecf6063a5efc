"""Prove an image: decode what a backend built, and compare it with the plan. Rules R301 and on.

Known as: translation validation.
"""
