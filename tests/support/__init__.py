"""Helpers that tests of every tier share."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]  # read it, never write below it
