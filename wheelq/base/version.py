"""The version of wheelq, for every room: rooms cannot import the package above them."""

__version__ = "0.2.0"
