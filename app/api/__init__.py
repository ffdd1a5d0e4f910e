"""HTTP: routes, what they take, and how they answer."""
