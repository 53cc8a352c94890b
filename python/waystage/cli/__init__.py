"""The one command, `waystage`: a file per subcommand.

Arrives: arguments, and a terminal or a pipe.
Leaves: text or JSON on stdout, progress and errors on stderr, a documented exit status.
Must not know: how anything is done; a subcommand parses, calls one room below, and prints.

Each subcommand's module exposes `command`. `main` imports a module only when its subcommand is
called, so that `waystage --help` opens no library that the answer does not need.
"""
