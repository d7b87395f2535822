"""What holds for the sources as a whole: layers, names, words, and the manual."""
