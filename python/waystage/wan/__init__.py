"""Copies between hosts: what a server's configuration says, who is trusted, what an end of a copy is called.

Arrives: files of configuration and of keys, ends such as `ada@host:/data`.
Leaves: validated values for the data plane's server and client; keys made once and kept.
Must not know: how bytes move, the command line.
"""
