"""The WebSocket protocol: publish, subscribe with credit, and watch resources. See docs/spec/websocket.md."""
