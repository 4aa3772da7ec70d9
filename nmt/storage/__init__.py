"""Files that are either complete or absent: atomic folders and manifests. Standard library only."""
