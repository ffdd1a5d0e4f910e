"""From events to clients: one writer, one reader."""
