"""The engines that compute a round of clients in one process."""
