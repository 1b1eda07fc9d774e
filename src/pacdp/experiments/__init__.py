"""The paper's settings, and what is shown of them."""
