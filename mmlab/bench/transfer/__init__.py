"""`mmlab bench transfer`: one message from encode to the batch in another process."""
