"""Encode and place the data of a built program: tables, constants, aligned memory."""
