"""`mmlab bench soak`: everything at once for minutes, and afterwards nothing is left over."""
