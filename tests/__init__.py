"""Tests: a package of its own, so that no package of this name elsewhere on the path is taken."""
