"""What is counted, and what a broker says of itself."""
