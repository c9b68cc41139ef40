"""The shell: command line, prompt, rendering."""
