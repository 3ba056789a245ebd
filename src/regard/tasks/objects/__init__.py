"""What tasks on objects in pictures share: matching of queries to objects, and the loss."""
