"""chat-workflow: conversations with language-model agents as durable workflow runs."""
