"""Where sentences come from, how they become numbers, and how numbers become batches."""
