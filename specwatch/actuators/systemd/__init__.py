"""A systemd unit as an actuator: directly where this process may, else through the root helper."""
