"""Pre-training without labels: a masked autoencoder fills in hidden patches (He et al., 2022)."""
