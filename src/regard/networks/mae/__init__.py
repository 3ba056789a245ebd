"""The masked autoencoder around a Vision Transformer."""
