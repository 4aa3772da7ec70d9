"""The version of the program."""

VERSION = "0.8.1"
