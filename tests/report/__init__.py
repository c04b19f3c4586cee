"""Tests of sheets, figures and the HTML report."""
