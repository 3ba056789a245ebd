"""Several labels per image or volume, learnt jointly by one network; any of them may be missing."""
