"""Fine-tuning: one loop; what varies is an argument."""
