"""The way to the API server: credentials, requests, watches. Its errors leave here in our words."""
