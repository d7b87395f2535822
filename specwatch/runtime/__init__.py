"""Clock, logs, files, sockets, child processes and HTTP servers: knows nothing of speculation."""
