"""How things are said to people, wherever they read it: figures, rules, foreign text."""
