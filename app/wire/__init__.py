"""The documents of the v1 contract, rendered once for every route and stream."""
