"""The recurrent translators."""
