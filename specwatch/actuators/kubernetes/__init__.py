"""A Deployment or a StatefulSet: the command of its pods is patched, and the rollout watched."""
