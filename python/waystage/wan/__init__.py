"""Copies between hosts: the configuration of a server, trusted keys, addresses of remote paths.

Arrives: configuration and key files, remote paths such as `ada@host:/data`.
Leaves: validated values for the data plane's server and client; persistent keys.
Must not know: how bytes move, the command line.
"""
