"""The dashboards as they are committed: what they ask, and how they look.

``python -m tests.dashboards --prometheus URL --folder OUT`` draws each as an HTML page.
"""
