"""A model's configuration in Hugging Face's terms: read, written, compared. No torch here.

``config`` holds it, ``load`` reads it (``keys`` are the keys it knows, ``rope`` the rotary ones),
``compare`` tells whether two mean the same numbers, ``limits`` whether a plan stays within one.
"""
