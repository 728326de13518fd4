"""`mmlab bench gpu`: what the package promises about a GPU, verified on the one that is here."""
