"""The HTTP side of serving: an OpenAI-style API, the router over replicas, and the ingress process that holds both."""
