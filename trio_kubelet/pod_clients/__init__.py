"""Clients of what runs in pods: HTTP/1.1 and HTTP/2, TCP, gRPC.

Probes and lifecycle hooks ask with them. Whatever answers may be hostile: each reads a bounded
part of it, and what it costs counts against its pod's share.
"""
