"""OpenAI's public schema, as far as this server speaks it, with the fields that users of open engines expect beside."""
