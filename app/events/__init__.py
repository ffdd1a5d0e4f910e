"""What happens while a turn runs."""
