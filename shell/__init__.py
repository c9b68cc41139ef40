"""The shell: command line, prompt, rendering.

::

    cli.py (flags; loads nothing of changefeed) --> open.py --> repl/loop.py    the prompt
                |                                     |             |
                |                                     v             v
                |                           script.py --> client.py: statements and local commands
                +--> service.py (start)                     |-- changefeed.backend: a state, a node
                +--> datasets.py (dataset)                  |-- commands.py, helps.py: \\d, \\h, ..
                                                            |-- render/, streaming.py: results
                                                            '-- diagnostics.py: standard error
    exits.py   exit statuses; signals.py: Ctrl-C and SIGTERM; settings.py: \\set
"""
