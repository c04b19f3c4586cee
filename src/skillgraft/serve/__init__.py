"""One base in memory, many skills at once: an HTTP server in OpenAI's shapes, and a page to try skills on."""
