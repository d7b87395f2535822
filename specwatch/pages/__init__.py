"""Pages for a browser and a mail client: templates, and the one way they are filled."""
