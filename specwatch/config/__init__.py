"""The configuration: YAML in, validated settings out. A file is called as its section is."""
