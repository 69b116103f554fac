"""What an operator looks at: health and the HTTP port."""
