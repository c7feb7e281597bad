"""WebSocket: publish, subscribe with credit, and watch what changes. docs/spec/websocket.md describes the messages."""
