"""The paper's theorems with explicit constants and dimension, and measurements of them."""
