"""Reading for clients: pulls, held pulls, queries by key and offset."""
