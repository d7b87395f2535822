"""Clock, logs, files, sockets, child processes and HTTP servers, independent of speculation."""
