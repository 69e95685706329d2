"""The only code that talks to the API server: configuration, transport, reflector, leases, patches, events."""
